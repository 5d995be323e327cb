"""A response's own state: its events, its end, its times."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from voicechat.cascade.chunks import ChunkBuffer, ChunkPolicy
from voicechat.cascade.response import Marks, ResponseState
from voicechat.contract.errors import CascadeError, StageFailed
from voicechat.contract.events import AudioDelta, Event, Finished, FinishReason, TextDelta
from voicechat.contract.requests import Message, ResponseRequest

REQUEST = ResponseRequest((Message.text("user", "Hello"),))


@pytest.fixture
def cancelled() -> list[ResponseState]:
    return []


@pytest.fixture
def state(cancelled: list[ResponseState]) -> ResponseState:
    return ResponseState(7, REQUEST, cancelled.append)


async def events_of(state: ResponseState) -> list[Event]:
    return [event async for event in state]


async def test_events_come_in_order_and_end(state: ResponseState) -> None:
    sound = AudioDelta(np.zeros(5, np.int16))
    state.emit(TextDelta("a"))
    state.emit(sound)
    finished = state.finished(FinishReason.STOP, 24_000)
    state.end(finished)
    assert await events_of(state) == [TextDelta("a"), sound, finished]
    assert state.id == "resp-7"


async def test_nothing_follows_the_end(state: ResponseState) -> None:
    finished = state.finished(FinishReason.LENGTH, 24_000)
    state.end(finished)
    state.emit(TextDelta("late"))
    state.end(StageFailed("thinker", "late"))
    assert await events_of(state) == [finished]


async def test_a_failure_is_raised_after_what_came_before(state: ResponseState) -> None:
    state.emit(TextDelta("a"))
    state.end(StageFailed("talker", "it broke"))
    seen = []
    with pytest.raises(StageFailed, match="it broke") as error:
        async for event in state:
            seen.append(event)
    assert seen == [TextDelta("a")]
    assert error.value.stage == "talker"
    assert isinstance(error.value, CascadeError)


async def test_iteration_waits_for_events(state: ResponseState) -> None:
    task = asyncio.create_task(events_of(state))
    await asyncio.sleep(0)
    assert not task.done()
    state.end(state.finished(FinishReason.STOP, 24_000))
    assert isinstance((await task)[-1], Finished)


def test_cancelling_asks_once_and_never_after_the_end(state: ResponseState, cancelled: list[ResponseState]) -> None:
    state.cancel()
    assert cancelled == [state]
    state.end(state.finished(FinishReason.CANCELLED, 24_000))
    state.cancel()
    assert cancelled == [state]


def test_counts_and_times(state: ResponseState) -> None:
    state.prompt_tokens, state.cached_tokens, state.completion_tokens = 9, 4, 3
    state.audio_in_seconds, state.sent_samples = 1.25, 36_000
    state.handoffs_us = [30.0, 10.0, 20.0]
    state.chunks = ChunkBuffer(ChunkPolicy(2, 1, 2, 0, 0), 2)
    state.chunks.push(bytes(6))
    state.marks.note("thinker_first_token")
    state.marks.note("first_audio")
    end = state.finished(FinishReason.STOP, 24_000)
    usage, times = end.usage, end.times
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.speech_tokens) == (9, 4, 3, 3)
    assert (usage.audio_in_seconds, usage.audio_out_seconds) == (1.25, 1.5)
    assert times.rows == 3
    assert times.handoff_us == 20.0
    assert times.ears is None
    assert times.thinker_done is None
    assert times.thinker_first_token is not None
    assert times.first_audio is not None
    assert times.done is not None
    assert 0 <= times.thinker_first_token <= times.first_audio <= times.done


def test_a_text_reply_has_no_speech(state: ResponseState) -> None:
    end = state.finished(FinishReason.STOP, 24_000)
    assert end.usage.speech_tokens == 0
    assert end.times.handoff_us is None


def test_a_mark_keeps_its_first_time() -> None:
    marks = Marks()
    assert marks.get("x") is None
    marks.note("x")
    first = marks.get("x")
    marks.note("x")
    assert marks.get("x") == first
    assert first is not None
    assert first <= marks.since_start()
