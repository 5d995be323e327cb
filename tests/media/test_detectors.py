"""Speech that is found for many microphones at once, in a thread, is what each alone would find."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.speech import silence, voice
from voicechat.assemble import AssembledPaths
from voicechat.contract.sound import FRAME_SAMPLES
from voicechat.media import silero as silero_module
from voicechat.media.detectors import SILERO_FILE, SMART_TURN_FILE, Detectors
from voicechat.media.silero import Silero, SileroStream
from voicechat.media.smart_turn import SmartTurn
from voicechat.media.vad import SpeechVad

Sound = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def silero(models: AssembledPaths) -> Silero:
    return Silero(models.detectors / SILERO_FILE)


@pytest.fixture
def detectors(models: AssembledPaths, silero: Silero) -> Iterator[Detectors]:
    made = Detectors(silero, SmartTurn(models.detectors / SMART_TURN_FILE), few=0)
    yield made
    made.close()


def microphone(seed: int) -> list[Sound]:
    """Frames of 6 s: speech, pauses of which some let Silero rest, and noise; different for each seed."""
    rng = np.random.default_rng(seed)
    parts = [silence(float(rng.uniform(0, 0.3)))]
    for pause in (0.2, 1.5, 0.1):
        parts += [voice(float(rng.uniform(0.3, 1.2))), silence(pause + float(rng.uniform(0, 0.2)))]
    sound = np.concatenate([*parts, silence(3)])[: 6 * 16_000].astype(np.float32)
    sound += rng.normal(0, 10 ** rng.uniform(-4, -2.5), len(sound)).astype(np.float32)
    return list(sound.reshape(-1, FRAME_SAMPLES))


async def test_many_microphones_at_once(detectors: Detectors, silero: Silero, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of any length, and strict now and then: frame by frame what one alone finds, to the last bit."""
    sizes: list[int] = []
    plain = silero.run

    def run(sound: Sound, state: Sound) -> tuple[Sound, Sound]:
        sizes.append(len(sound))
        return plain(sound, state)

    everyone = [microphone(seed) for seed in range(8)]
    expected = []
    for frames in everyone:
        vad = SpeechVad(silero)
        expected.append([vad.voiced(frame, strict=place % 90 > 60) for place, frame in enumerate(frames)])
        assert 20 < sum(expected[-1]) < len(frames) - 20
    monkeypatch.setattr(silero, "run", run)

    async def listen(seed: int, frames: list[Sound]) -> list[bool]:
        rng, vad = np.random.default_rng(seed), detectors.vad()
        found: list[bool] = []
        while len(found) < len(frames):
            some = frames[len(found) : len(found) + int(rng.integers(1, 12))]
            for frame, (heard, probability) in zip(some, await detectors.heard(vad, some), strict=True):
                found.append(vad.decide(heard, probability, strict=len(found) % 90 > 60))
                assert len(frame) == FRAME_SAMPLES
        return found

    async with asyncio.timeout(60):
        assert await asyncio.gather(*(listen(seed, frames) for seed, frames in enumerate(everyone))) == expected
    assert max(sizes) >= 4, "several microphones' windows are run together"


async def test_few_microphones_are_heard_on_the_spot(
    models: AssembledPaths, silero: Silero, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many some go through the thread, and a microphone may change between the two: what it hears is the same."""
    threads: list[bool] = []
    plain = silero.run

    def run(sound: Sound, state: Sound) -> tuple[Sound, Sound]:
        threads.append(threading.current_thread() is threading.main_thread())
        return plain(sound, state)

    frames = microphone(3)
    alone = SpeechVad(silero)
    expected = [alone.voiced(frame) for frame in frames]
    monkeypatch.setattr(silero, "run", run)
    for few, on_the_spot in ((10_000, {True}), (60, {True, False})):
        detectors = Detectors(silero, SmartTurn(models.detectors / SMART_TURN_FILE), few=few)
        vad, found = detectors.vad(), []
        threads.clear()
        for frame in frames:
            ((heard, probability),) = await detectors.heard(vad, [frame])
            found.append(vad.decide(heard, probability))
        detectors.close()
        assert found == expected and set(threads) == on_the_spot
        with pytest.raises(RuntimeError, match="closed"):
            for frame in frames:
                await detectors.heard(vad, [frame])


async def test_a_quiet_microphone_is_not_waited_for(detectors: Detectors) -> None:
    vad = detectors.vad()
    detectors.close()
    found = await detectors.heard(vad, [np.zeros(FRAME_SAMPLES, np.float32)] * 20)
    assert not any(vad.decide(heard, probability) for heard, probability in found)


async def test_closed(detectors: Detectors) -> None:
    """Who listens then is told so, and who waited already."""
    detectors.close()
    with pytest.raises(RuntimeError, match="closed"):
        await detectors.heard(detectors.vad(), microphone(1)[:200])
    with pytest.raises(RuntimeError, match="closed"):
        await detectors.heard(detectors.vad(), microphone(1)[:200])


async def test_who_waits_in_vain_and_a_fault(
    detectors: Detectors, silero: Silero, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that gave up disturbs nobody; what goes wrong in a batch is told to all in it, and the next is run."""
    go, faults = threading.Event(), [ValueError("broken")]
    plain = silero_module.run_streams

    def run(*given: Any) -> Any:
        assert go.wait(10)
        if faults:
            raise faults.pop()
        return plain(*given)

    monkeypatch.setattr(silero_module, "run_streams", run)
    first = [asyncio.ensure_future(detectors.heard(detectors.vad(), microphone(2)[:150])) for _ in range(3)]
    await asyncio.sleep(0.02)
    second = [asyncio.ensure_future(detectors.heard(detectors.vad(), microphone(3)[:150])) for _ in range(2)]
    await asyncio.sleep(0.02)
    first[1].cancel()
    second[0].cancel()
    go.set()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*first, *second, return_exceptions=True)
    assert [type(result) for result in results] == [
        ValueError,
        asyncio.CancelledError,
        ValueError,
        asyncio.CancelledError,
        list,
    ]


def test_one_event_loop_after_another(detectors: Detectors) -> None:
    """Also if the first ended while something was being run for it."""

    async def leave() -> None:
        waiting = asyncio.ensure_future(detectors.heard(detectors.vad(), microphone(4)[:150]))
        await asyncio.sleep(0)
        waiting.cancel()

    async def stay() -> int:
        async with asyncio.timeout(10):
            return len(await detectors.heard(detectors.vad(), microphone(4)[:150]))

    asyncio.run(leave())
    assert asyncio.run(stay()) == 150


def test_a_stream_begins_afresh_in_the_middle_of_a_batch(silero: Silero) -> None:
    sound = voice(2.0).astype(np.float32)
    stream, plain = SileroStream(silero), SileroStream(silero)
    first = stream.take(sound[:8000])
    stream.reset()
    second = stream.take(sound[8000:])
    (found,) = silero_module.run_streams(silero, [(stream, [first, second])])
    assert found[1] == plain.push(sound[8000:])
    assert np.array_equal(stream.state, plain.state)
