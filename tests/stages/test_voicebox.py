"""The VoiceBox: streamed as the chunk buffer cuts it equals whole, in the net and through its process and the ring."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio
import torch

from tests.stages.hosts import FAULT_FILE, StageHost, run_voicebox_with_faults
from tests.stages.streaming import Floats, chunks_of, exactly, streamed, symbols_of, tensors, whole
from voicechat.app import chunk_policy, voicebox_config
from voicechat.assemble import AssembledPaths
from voicechat.cascade.chunks import Chunk, ChunkPolicy
from voicechat.config import Settings
from voicechat.contract.messages import Decode, Failed, Sound
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.sound import Pcm
from voicechat.models.embedded.voicebox import (
    CODES,
    RIGHT_CONTEXT,
    TOKEN_SAMPLES,
    VoiceBoxNet,
    left_context,
    load_voicebox,
)
from voicechat.stages.tempo import Tempo
from voicechat.stages.voicebox import Mark, run
from voicechat.watermark.embed import Embedder
from voicechat.watermark.keys import Key

STEPS = 140
EDGE_SNR = {"latency_first": 60.0, "quality_first": 60.0}
"""dB by which the sound is above what streaming changes in it, at the least, with the contexts of the settings."""


@pytest.fixture(scope="module")
def net(models: AssembledPaths) -> VoiceBoxNet:
    return load_voicebox(models.folders["weights"])


@pytest.fixture(scope="module")
def policies() -> dict[str, ChunkPolicy]:
    settings = Settings().voicebox
    return {
        "latency_first": chunk_policy(settings.latency_first, RIGHT_CONTEXT),
        "quality_first": chunk_policy(settings.quality_first, RIGHT_CONTEXT),
    }


def codes_of(seed: int, steps: int = STEPS) -> list[int]:
    """Codes of no language: each held for some steps, as those of speech are alike for a while."""
    rng = np.random.default_rng(seed)
    codes: list[int] = []
    while len(codes) < steps:
        codes += [int(rng.integers(CODES))] * int(rng.integers(1, 4))
    return codes[:steps]


def snr(reference: Floats, other: Floats) -> float:
    """Signal to difference, dB."""
    noise = float(np.mean((reference - other) ** 2))
    return math.inf if noise == 0 else 10 * math.log10(float(np.mean(reference**2)) / noise)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["latency_first", "quality_first"])
def test_full_context_is_exact(net: VoiceBoxNet, policies: dict[str, ChunkPolicy], mode: str, seed: int) -> None:
    """With all of the past that the net can see, streaming changes nothing but the last bits.

    Those of a pitch, some parts in ten million, do not stay where they are, for the phase is the pitches' sum. After
    six seconds the highest harmonic, at 11.5 kHz, has gone through some 65,000 cycles, and would be off by 0.02 of one
    if all the errors had one sign; as they do not, it is a few thousandths, and less the lower a harmonic is.
    """
    policy = policies[mode]
    full = ChunkPolicy(policy.first, policy.growth, policy.largest, left_context(net.config), RIGHT_CONTEXT)
    codes, symbols = codes_of(seed), symbols_of(STEPS)
    expected = whole(net, codes, symbols)
    got = streamed(net, chunks_of(full, codes, symbols))
    np.testing.assert_allclose(got, expected, atol=5e-3 * np.abs(expected).max())
    assert snr(expected, got) > 60


def test_the_look_ahead_is_no_smaller_than_it_must_be(net: VoiceBoxNet) -> None:
    """One step of the future less is heard."""
    codes, symbols = codes_of(3), symbols_of(STEPS)
    short = ChunkPolicy(8, 1, 8, left_context(net.config), RIGHT_CONTEXT - 1)
    chunks = chunks_of(short, codes, symbols)
    assert snr(exactly(net, codes, symbols, chunks), streamed(net, chunks)) < 60


@pytest.mark.parametrize("mode", ["latency_first", "quality_first"])
def test_the_context_of_the_settings_is_enough(net: VoiceBoxNet, policies: dict[str, ChunkPolicy], mode: str) -> None:
    """The short context that speed allows: what it changes lies far below the sound, and not at the joins alone.

    A pitch that is changed a little moves the pulse train for all that follows; that is no fault of what follows.
    """
    values = []
    for seed in range(3):
        codes, symbols = codes_of(seed), symbols_of(STEPS)
        chunks = chunks_of(policies[mode], codes, symbols)
        values.append(snr(exactly(net, codes, symbols, chunks), streamed(net, chunks)))
    assert min(values) > EDGE_SNR[mode], values


@pytest.mark.parametrize("mode", ["latency_first", "quality_first"])
def test_no_clicks_at_the_joins(net: VoiceBoxNet, policies: dict[str, ChunkPolicy], mode: str) -> None:
    """The step from one chunk's last sample to the next one's first is no larger than steps elsewhere."""
    codes, symbols = codes_of(5), symbols_of(STEPS)
    chunks = chunks_of(policies[mode], codes, symbols)
    steps = np.abs(np.diff(streamed(net, chunks)))
    joins = [chunk.first_step * TOKEN_SAMPLES - 1 for chunk in chunks[1:]]
    reference = np.abs(np.diff(whole(net, codes, symbols)))
    for join in joins:
        near = reference[max(0, join - 480) : join + 480]
        assert steps[join] <= 1.5 * near.max() + 0.01


def test_a_batch_is_as_good_as_one(net: VoiceBoxNet) -> None:
    replies = [(codes_of(seed, 20), symbols_of(20, seed)) for seed in range(4)]
    codes, windows = (torch.cat(parts) for parts in zip(*(tensors(*reply) for reply in replies), strict=True))
    together = net.decode(codes, windows).numpy()
    for index, reply in enumerate(replies):
        assert snr(whole(net, *reply), together[index]) > 60


# ---- the process


@dataclass
class Running:
    host: StageHost
    pool: Pool


def ring() -> PoolSpec:
    return PoolSpec(
        name=PoolSpec.new_name(),
        slots=3,
        hidden_size=4,
        max_rows=4,
        max_text_rows=4,
        pcm_samples=80 * TOKEN_SAMPLES + 7,  # a ring that chunks do not fit evenly
        bays=1,
        bay_samples=4,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(models: AssembledPaths, policies: dict[str, ChunkPolicy]) -> AsyncIterator[Running]:
    spec = ring()
    config = voicebox_config(Settings(), models.facts, spec, {True: policies["latency_first"]}, 30)
    pool = Pool(spec, create=True)
    host = StageHost("voicebox", run, config)
    try:
        await host.stage.start()
        yield Running(host, pool)
    finally:
        await host.stage.stop()
        pool.close()


async def stream(
    running: Running, number: int, slot: int, chunks: list[Chunk], speed: float = 1.0, *, delayed: bool = False
) -> Pcm:
    """A reply's sound, chunk by chunk through the ring, as the coordinator takes it."""
    parts = []
    state = b""
    for count, chunk in enumerate(chunks, 1):
        start = chunk.first_step * TOKEN_SAMPLES
        running.host.send(Decode(number, slot, chunk.steps, chunk.left, chunk.emit, start, 0, state, chunk.last, speed))
        await running.host.until(lambda count=count: len(running.host.of(number, Sound)) == count)  # type: ignore[misc]
        sound = running.host.of(number, Sound)[-1]
        state = sound.state
        assert sound.start == sum(map(len, parts)), "places are those of what is heard"
        if speed == 1.0 and not delayed:
            assert sound == Sound(number, start, chunk.emit * TOKEN_SAMPLES, state)
        parts.append(running.pool.read_pcm(slot, sound.start, sound.count))
    return np.concatenate(parts)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("mode", ["latency_first", "quality_first"])
async def test_the_process_streams_what_the_net_makes(
    running: Running, net: VoiceBoxNet, policies: dict[str, ChunkPolicy], mode: str
) -> None:
    codes = codes_of(8, 230)  # round the ring more than once
    chunks = chunks_of(policies[mode], codes, symbols_of(230))
    got = await stream(running, 10 + len(chunks), 0, chunks)
    np.testing.assert_allclose(got / 32767, streamed(net, chunks), atol=1e-3)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("speed", [0.5, 1.5])
async def test_the_tempo_is_changed_in_the_process(
    running: Running, net: VoiceBoxNet, policies: dict[str, ChunkPolicy], speed: float
) -> None:
    chunks = chunks_of(policies["latency_first"], codes_of(8, 90), symbols_of(90))
    plain = await stream(running, 1000 + int(100 * speed), 0, chunks)
    tempo = Tempo(speed)
    expected = np.concatenate([tempo.push(plain), tempo.flush()])
    got = await stream(running, 1001 + int(100 * speed), 0, chunks, speed)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.asyncio(loop_scope="module")
async def test_replies_at_once_keep_apart(running: Running, net: VoiceBoxNet, policies: dict[str, ChunkPolicy]) -> None:
    """Chunks of one length are decoded together; each goes to its own slot."""
    chunks = [chunks_of(policies["latency_first"], codes_of(20 + slot, 60), symbols_of(60, slot)) for slot in range(3)]
    sounds = await asyncio.gather(*(stream(running, 70 + slot, slot, chunks[slot]) for slot in range(3)))
    for slot in range(3):
        np.testing.assert_allclose(sounds[slot] / 32767, streamed(net, chunks[slot]), atol=1e-3)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def marking(
    models: AssembledPaths, policies: dict[str, ChunkPolicy], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Running, Path]]:
    """A process that marks, and the file that says how its embedder fails."""
    spec, fault = ring(), tmp_path_factory.mktemp("fault") / "fault"
    fault.write_text("")
    config = voicebox_config(
        Settings(), models.facts, spec, {True: policies["latency_first"]}, 30, Mark(bytes(32), 4711)
    )
    pool = Pool(spec, create=True)
    host = StageHost("voicebox", run_voicebox_with_faults, msgspec.structs.replace(config, patience=1.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULT_FILE, str(fault))
        try:
            await host.stage.start()
            yield Running(host, pool), fault
        finally:
            await host.stage.stop()
            pool.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("speed", [1.0, 1.5])
async def test_the_process_marks_what_is_heard(
    running: Running, marking: tuple[Running, Path], policies: dict[str, ChunkPolicy], speed: float
) -> None:
    """What comes out is what the embedder makes of the stretched sound: the cuts between chunks leave no trace."""
    chunks = chunks_of(policies["latency_first"], codes_of(8, 90), symbols_of(90))
    plain = await stream(running, 700 + int(10 * speed), 0, chunks, speed)
    marked = await stream(marking[0], 700 + int(10 * speed), 0, chunks, speed, delayed=True)
    embedder = Embedder(Key(bytes(32)), 4711)
    np.testing.assert_array_equal(marked, np.concatenate([embedder.push(plain), embedder.finish()]))
    assert not np.array_equal(marked, plain)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("fault", "told"), [("raise", "could not be watermarked"), ("hang", "can't keep up")])
async def test_a_fault_in_the_embedder_fails_the_reply_and_lets_nothing_out(
    marking: tuple[Running, Path], policies: dict[str, ChunkPolicy], fault: str, told: str
) -> None:
    (process, file), number = marking, {"raise": 801, "hang": 802}[fault]
    chunks = chunks_of(policies["latency_first"], codes_of(9, 40), symbols_of(40))
    first, second = chunks[0], chunks[1]
    process.host.send(Decode(number, 1, first.steps, first.left, first.emit, 0))
    await process.host.until(lambda: bool(process.host.of(number, Sound)))
    before = process.pool.pcm.copy()
    file.write_text(fault)
    state = process.host.of(number, Sound)[0].state
    start = second.first_step * TOKEN_SAMPLES
    process.host.send(Decode(number, 1, second.steps, second.left, second.emit, start, 0, state, second.last))
    await process.host.until(lambda: bool(process.host.of(number, Failed)))
    (failed,) = process.host.of(number, Failed)
    assert told in failed.message and len(process.host.of(number, Sound)) == 1
    np.testing.assert_array_equal(process.pool.pcm, before)
    file.write_text("")
    await stream(process, number + 100, 2, chunks, delayed=True)  # and the next reply is heard
