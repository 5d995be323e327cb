"""Spoken turns and their replies: the session alone, on a clock that the test moves."""

import asyncio

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.speech import silence, voice
from voicechat.contract.errors import NotReady, Overloaded, StageFailed
from voicechat.realtime.replies import PATIENCE_S


async def test_a_turn_and_its_reply(make_bench):
    bench = make_bench()
    await bench.run(np.concatenate([silence(0.5), voice(1.0), silence(0.3)]))
    assert len(bench.cascade.heard) == 1, "the ears begin at the pause, before the turn is over"
    assert not bench.all("input_audio_buffer.speech_stopped")
    await bench.until("output_audio_buffer.stopped")
    assert len(bench.cascade.heard) == 1, "and are not asked again"
    kinds = bench.kinds()
    assert kinds.index("response.content_part.added") < kinds.index("output_audio_buffer.started")
    kinds.remove("output_audio_buffer.started")  # comes when the sound does, between the deltas
    assert kinds == [
        "session.created",
        "conversation.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.created",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.created",
        "conversation.item.added",
        "response.content_part.added",
        *["response.output_audio_transcript.delta"] * 4,
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "output_audio_buffer.stopped",
    ]
    assert bench.all("conversation.item.input_audio_transcription.completed")[0]["transcript"] == "hello there"
    text = "".join(event["delta"] for event in bench.all("response.output_audio_transcript.delta"))
    assert text == bench.all("response.output_audio_transcript.done")[0]["transcript"] == "You said: hello there."
    assert bench.asked() == [("system", "Be brief."), ("user", "hello there")]
    done = bench.all("response.done")[0]["response"]
    assert done["status"] == "completed"
    assert done["metadata"]["endpointing_ms"] == "500"
    assert {"ears_ms", "first_text_ms", "first_audio_ms", "first_sound_ms"} <= done["metadata"].keys()
    assert done["usage"]["output_token_details"] == {"text_tokens": 4, "audio_tokens": 30}
    sound = np.concatenate(bench.sound)
    assert np.count_nonzero(sound) == pytest.approx(4 * 0.3 * 24_000, rel=0.01)


async def test_items_name_each_other(make_bench):
    bench = make_bench()
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.stopped")
    user, reply = bench.all("conversation.item.added")
    assert user["item"]["id"] == bench.all("input_audio_buffer.speech_started")[0]["item_id"]
    assert user["previous_item_id"] is None
    assert reply["previous_item_id"] == user["item"]["id"]


async def test_conversation_is_remembered(make_bench):
    bench = make_bench(DoubleCascade(transcripts=["one", "two"]))
    for number in (1, 2):
        await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
        await bench.until("output_audio_buffer.stopped", number)
    assert bench.asked() == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "You said: one."),
        ("user", "two"),
    ]


async def test_reply_is_begun_ahead_and_kept_back(make_bench):
    bench = make_bench()
    await bench.run(np.concatenate([silence(0.5), voice(1.0), silence(0.48)]))
    assert len(bench.cascade.requests) == 1, "the reply is being made before the turn is over"
    assert not bench.all("response.created"), "and nobody is told"
    await bench.until("output_audio_buffer.stopped")
    assert len(bench.cascade.requests) == 1
    assert bench.all("response.done")[0]["response"]["status"] == "completed"


async def test_reply_that_was_begun_in_vain_is_stopped(make_bench):
    bench = make_bench(DoubleCascade(transcripts=["half", "the whole"]))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.44), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped")
    assert [bench.asked(i)[-1][1] for i in range(2)] == ["half", "the whole"]
    assert bench.cascade.responses[0].cancelled.is_set()
    assert len(bench.all("response.created")) == len(bench.all("input_audio_buffer.committed")) == 1


async def test_reply_begun_ahead_is_stopped_with_the_session(make_bench):
    bench = make_bench()
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.44)]))
    bench.session.on_closed("gone")
    assert bench.cascade.responses[0].cancelled.is_set()


async def test_nothing_is_begun_ahead_if_that_is_turned_off(make_bench):
    bench = make_bench(eager=False)
    await bench.run(np.concatenate([silence(0.5), voice(1.0), silence(0.48)]))
    assert not bench.cascade.requests
    await bench.until("output_audio_buffer.stopped")


async def test_going_on_after_a_pause_voids_the_guess(make_bench):
    bench = make_bench(DoubleCascade(transcripts=["all of it"], ears_delay=0.3))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.3), voice(0.6), silence(0.6)]))
    await bench.until("response.created")
    assert bench.cascade.transcribe_cancelled == 1
    assert len(bench.cascade.heard) == 2
    assert len(bench.cascade.heard[1]) > len(bench.cascade.heard[0]) + 16_000 * 0.6
    assert bench.asked()[-1] == ("user", "all of it")


async def test_nothing_understood_is_no_turn(make_bench):
    bench = make_bench(DoubleCascade(transcripts=["  "]))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(1.0)]))
    event = await bench.until("conversation.item.input_audio_transcription.completed")
    assert event["transcript"] == ""
    await bench.run(silence(0.5))
    assert not bench.cascade.requests


async def test_failing_ears_are_told(make_bench):
    bench = make_bench(DoubleCascade(fail_transcribe=StageFailed("ears", "the ears are down")))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    event = await bench.until("conversation.item.input_audio_transcription.failed")
    assert (event["error"]["code"], event["error"]["message"]) == ("stage_failed", "the ears are down")
    assert not bench.cascade.requests


async def test_a_turn_waits_for_ears_that_come_back(make_bench, monkeypatch):
    """Its reply too has the patience to wait for a stage."""
    monkeypatch.setattr("voicechat.faces.realtime_shell._EARS_PAUSE_S", 0.01)
    bench = make_bench(DoubleCascade(fail_transcribe=NotReady("the ears are not up")))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    assert not bench.all("conversation.item.input_audio_transcription.failed")
    bench.cascade.fail_transcribe = None
    await bench.until("output_audio_buffer.stopped")
    assert bench.all("response.done")[0]["response"]["status"] == "completed"
    assert bench.cascade.requests[0].patience == PATIENCE_S


async def test_a_session_learns_that_the_server_goes_down(make_bench):
    """And the reply that is being spoken goes on."""
    bench = make_bench()
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("response.created")
    bench.session.going_down()
    await bench.until("output_audio_buffer.stopped")
    (error,) = [event["error"] for event in bench.all("error")]
    assert (error["type"], error["code"]) == ("server_error", "session_expired")
    assert bench.all("response.done")[0]["response"]["status"] == "completed"


@pytest.mark.parametrize(
    ("after", "error", "code"),
    [(0, Overloaded("full"), "rate_limit_exceeded"), (2, StageFailed("talker", "died"), "stage_failed")],
)
async def test_failing_reply_is_told_once_and_the_session_lives(make_bench, after, error, code):
    bench = make_bench(DoubleCascade(fail_respond=error, fail_after=after))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    done = (await bench.until("response.done"))["response"]
    assert done["status"] == "failed"
    assert done["status_details"]["error"]["code"] == code
    await bench.run(silence(1.0))
    assert len(bench.all("response.done")) == 1
    bench.cascade.fail_respond = None
    await bench.run(np.concatenate([voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped", 2 if after else 1)
    assert bench.all("response.done")[1]["response"]["status"] == "completed"


async def test_microphone_that_stops_ends_the_turn(make_bench):
    bench = make_bench()
    await bench.run(np.concatenate([silence(0.5), voice(0.6)]))
    bench.session.on_starved(30)
    for _ in range(100):  # no sound comes any more; the session hears of that in its turn
        await asyncio.sleep(0.001)
    assert bench.all("input_audio_buffer.committed")


async def test_close_in_the_middle_stops_everything(make_bench):
    bench = make_bench(DoubleCascade(answer="word " * 40, word_delay=0.2))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.started")
    bench.session.on_closed("gone")
    await asyncio.wait_for(bench.session.wait_closed(), 2)
    assert bench.cascade.responses[0].cancelled.is_set()
    assert not bench.playout.active


@pytest.mark.parametrize("lack", [False, True])
async def test_a_fault_in_hearing_ends_the_session_and_is_not_hidden(make_bench, monkeypatch, lack):
    bench = make_bench()
    reasons: list[str] = []
    monkeypatch.setattr(bench.session, "_end", reasons.append)

    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(bench.session._session, "on_starved" if lack else "on_frame", fail)
    with pytest.raises(ZeroDivisionError):
        if lack:
            bench.session.on_starved(3)
        else:
            bench.session.on_audio(silence(0.02))
    assert reasons == ["internal error"]
