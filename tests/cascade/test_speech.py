"""A given text is spoken: through Talker and VoiceBox alone, of any length, and with bounds on what it may take."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.cascade.doubles import STEP_SAMPLES
from tests.cascade.world import World, simulated
from voicechat.cascade import traffic
from voicechat.cascade.coordinator import MAX_TEXT
from voicechat.cascade.response import ResponseState
from voicechat.contract.errors import InvalidRequest, NotReady, StageFailed
from voicechat.contract.events import AudioDelta, Finished, FinishReason, Usage
from voicechat.contract.messages import Abort, Generate, Speak, Text
from voicechat.contract.requests import SpeechRequest

TEXT = "Hello there,\n my friend.  "


def test_a_text_is_spoken_and_nothing_else_comes() -> None:
    async def body(world: World) -> None:
        caller = world.speak(TEXT, voice="ben", seed=5)
        await world.all_ended()
        assert caller.error is None
        assert all(isinstance(event, AudioDelta) for event in caller.events[:-1])
        assert isinstance(caller.events[-1], Finished)
        steps = len(caller.sound) // STEP_SAMPLES
        assert steps == 3 * 5, "as the double speaks: three steps for each of five pieces"
        assert caller.events[-1].reason is FinishReason.STOP
        assert caller.events[-1].usage == Usage(speech_tokens=steps, audio_out_seconds=steps / 25)
        number = caller.response.number
        told = [message for message in world.stages["talker"].log if getattr(message, "id", None) == number]
        speak, text = told[:2]
        assert isinstance(speak, Speak)
        assert (speak.voice, speak.seed, speak.rows) == (1, 5, False)
        assert isinstance(text, Text)
        assert text.final
        assert "".join(text.pieces) == TEXT
        assert not any(
            isinstance(message, Generate) and message.id == number for message in world.stages["thinker"].log
        )

    simulated(body)


def test_no_thinker_is_needed() -> None:
    async def body(world: World) -> None:
        running = world.speak(TEXT)
        await world.step(3)
        world.stages["thinker"].die()
        later = world.speak(TEXT)
        await world.all_ended()
        assert running.error is None
        assert later.error is None

    simulated(body)


@pytest.mark.parametrize("name", ["talker", "voicebox"])
def test_a_stage_of_speech_that_is_down_is_told(name: str) -> None:
    async def body(world: World) -> None:
        running = world.speak(TEXT)
        await world.step(2)
        world.stages[name].die()
        await world.all_ended()
        assert isinstance(running.error, StageFailed)
        assert running.error.stage == name
        refused = world.speak(TEXT)
        await world.all_ended()
        assert isinstance(refused.error, NotReady)
        await world.run_until(lambda: world.cascade.ready)

    simulated(body, seed=3)


@pytest.mark.parametrize(
    ("text", "voice", "param"),
    [("", None, "text"), (" \n\t ", None, "text"), ("x" * (MAX_TEXT + 1), None, "text"), ("Hello", "nobody", "voice")],
)
def test_bad_requests_name_what_is_wrong(text: str, voice: str | None, param: str) -> None:
    async def body(world: World) -> None:
        caller = world.speak(text, voice=voice)
        await world.all_ended()
        assert isinstance(caller.error, InvalidRequest)
        assert caller.error.param == param

    simulated(body)


def test_a_text_of_which_the_talker_makes_nothing_is_refused() -> None:
    async def body(world: World) -> None:
        talker = world.stages["talker"]
        caller = world.speak("***")
        await world.run_until(
            lambda: caller.response.number in talker.work and talker.work[caller.response.number].final
        )
        talker.work[caller.response.number].left = 0
        await world.all_ended()
        assert isinstance(caller.error, InvalidRequest)
        assert caller.error.param == "text"

    simulated(body, seed=1)


def test_a_cancelled_speech_ends_at_once() -> None:
    async def body(world: World) -> None:
        caller = world.speak(TEXT)
        await asyncio.sleep(0.01)
        caller.response.cancel()
        assert [m for m in world.stages["talker"].inbox if isinstance(m, Abort)] == [Abort(caller.response.number)]
        await world.all_ended()
        assert caller.finished is not None
        assert caller.finished.reason is FinishReason.CANCELLED

    simulated(body)


def test_long_text_is_not_cut_inside_of_words() -> None:
    async def body(world: World) -> None:
        text = " ".join(f"word{index}" for index in range(1000)) + " " + "a" * 500
        caller = world.speak(text)
        await asyncio.sleep(0.01)
        (sent,) = [m for m in world.stages["talker"].inbox if isinstance(m, Text)]
        assert "".join(sent.pieces) == text
        assert all(piece.strip().startswith("word") for piece in sent.pieces[:1000])
        assert max(map(len, sent.pieces)) <= 201
        caller.response.cancel()

    simulated(body)


def test_a_reader_that_stands_still_halts_the_voicebox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound does not pile up without a bound, others are served meanwhile, and nothing is lost in the end."""
    monkeypatch.setattr(traffic, "MAX_UNREAD", 6 * STEP_SAMPLES)

    async def body(world: World) -> None:
        response = world.cascade.speak(SpeechRequest("one two three four five six seven eight nine ten"))
        other = world.speak("one two three four five six seven eight nine ten")
        await world.all_ended()
        assert other.error is None
        await world.step(500)
        assert 6 <= response.unread_samples // STEP_SAMPLES <= 14, "the bound, and the one chunk that met it"
        reading = asyncio.create_task(_read(response))
        await world.run_until(reading.done)
        assert len(await reading) == 30 * STEP_SAMPLES
        assert response.unread_samples == 0

    simulated(body)


async def _read(response: ResponseState) -> np.ndarray:
    return np.concatenate([event.pcm async for event in response if isinstance(event, AudioDelta)])
