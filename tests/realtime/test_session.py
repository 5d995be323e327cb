"""The session's ways, one by one: turns, replies that are begun ahead, its clock and its end."""

from __future__ import annotations

from tests.realtime.bench import Bench, manual
from voicechat.realtime.settings import SessionConfig


def test_spoken_turn_in_order():
    bench = Bench()
    bench.turn()
    bench.say("Hi", " there")
    bench.finish()
    assert bench.kinds() == [
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
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert bench.asked() == [("system", "Be brief."), ("user", "hello")]
    done = bench.done()
    assert done["status"] == "completed"
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hi there"}]
    assert done["usage"]["output_token_details"] == {"text_tokens": 3, "audio_tokens": 4}
    assert done["metadata"]["endpointing_ms"] == "500"
    bench.check()


def test_reply_is_begun_ahead_and_kept_back():
    bench = Bench()
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("hello")
    assert len(bench.started) == 1 and "response.created" not in bench.kinds()
    bench.say("Hi")
    assert "response.created" not in bench.kinds()
    bench.hear(0.3, False)
    assert bench.all("response.output_audio_transcript.delta")[0]["delta"] == "Hi"
    bench.say(" there")
    bench.finish()
    assert bench.done()["output"][0]["content"][0]["transcript"] == "Hi there"
    assert len(bench.started) == 1
    bench.check()


def test_going_on_after_a_pause_voids_what_was_begun():
    bench = Bench()
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("half")
    bench.hear(0.4, True)
    assert bench.cancelled == [1]
    bench.hear(0.6, False)
    bench.understand("the whole")
    bench.say("Yes", generation=1)
    assert "response.output_audio_transcript.delta" not in bench.kinds(), "stale"
    assert bench.asked()[-1] == ("user", "the whole")
    bench.check()


def test_played_reply_ends_with_stopped():
    bench = Bench(server_plays=True)
    bench.turn()
    bench.say("Hi")
    bench.finish()
    bench.play(0.5)
    assert bench.kinds()[-3:] == ["response.done", "output_audio_buffer.started", "output_audio_buffer.stopped"]
    assert bench.session.replies.idle


def test_noise_before_the_reply_only_delays_it():
    bench = Bench()
    bench.turn()
    assert len(bench.all("response.created")) == 1
    bench.hear(0.08, True)
    bench.hear(0.6, False)
    assert [d["response"]["status"] for d in bench.all("response.done")] == ["cancelled"]
    assert len(bench.started) == 2 and bench.asked(0) == bench.asked(1)
    bench.check()


def test_manual_mode():
    bench = manual()
    bench.tell("input_audio_buffer.commit")
    assert bench.error()["code"] == "input_audio_buffer_commit_empty"
    assert bench.error()["event_id"] == "mine"
    bench.hear(1.0, True)
    bench.hear(2.0, False)
    assert bench.kinds()[-1] == "error", "nothing happens by itself"
    bench.tell("input_audio_buffer.clear")
    assert bench.kinds()[-1] == "input_audio_buffer.cleared"
    bench.tell("input_audio_buffer.commit")
    assert bench.error()["code"] == "input_audio_buffer_commit_empty"
    bench.hear(1.0, True)
    bench.tell("input_audio_buffer.commit")
    assert "input_audio_buffer.speech_stopped" not in bench.kinds()
    bench.tell("response.create")
    assert bench.kinds()[-2:] == ["response.created", "rate_limits.updated"]
    assert not bench.started, "the ears are not done"
    bench.understand("what time is it")
    assert bench.asked() == [("system", "Be brief."), ("user", "what time is it")]
    bench.say("Late.")
    bench.finish()
    assert bench.done()["status"] == "completed"
    bench.check()


def test_commit_in_the_middle_of_a_detected_turn():
    bench = Bench()
    bench.hear(0.6, True)
    bench.tell("input_audio_buffer.commit")
    bench.understand("hello")
    assert bench.asked()[-1] == ("user", "hello")
    bench.check()


def test_expiry():
    bench = Bench(max_seconds=100, warn_seconds=10)
    bench.turn()
    bench.say("Hi")
    assert not bench.all("session.updated")
    bench.pass_time(89)
    assert bench.events[-1]["type"] == "session.updated", "a warning that ends no client"
    assert bench.events[-1]["session"] == bench.all("session.created")[0]["session"]
    bench.pass_time(5)
    assert len(bench.all("session.updated")) == 1, "warned once"
    assert not bench.all("error")
    bench.pass_time(7)
    assert bench.closed is not None and bench.all("error")[0]["error"]["code"] == "session_expired"
    assert bench.done()["status"] == "cancelled"
    bench.tell("response.create")
    assert bench.kinds()[-1] == "response.done"


def test_idle_timeout():
    config = SessionConfig("", "anna")
    bench = Bench(config)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}})
    bench.hear(10, False)
    assert "input_audio_buffer.timeout_triggered" not in bench.kinds(), "nobody has spoken yet"
    bench.turn()
    bench.say("Hi")
    bench.finish()
    bench.hear(4, False)
    assert "input_audio_buffer.timeout_triggered" not in bench.kinds()
    bench.hear(2, False)
    triggered = bench.all("input_audio_buffer.timeout_triggered")[0]
    assert triggered["audio_end_ms"] - triggered["audio_start_ms"] == 5000
    assert bench.asked()[-1][1] == "(The user says nothing.)"
    bench.say("Are you there?")
    bench.finish()
    bench.hear(20, False)
    assert len(bench.all("input_audio_buffer.timeout_triggered")) == 1, "once until somebody speaks"
    bench.check()


def test_close_stops_everything():
    bench = Bench()
    bench.turn()
    bench.say("Hi")
    bench.take(bench.session.close())
    assert not bench.running and not bench.jobs
    assert bench.done()["status"] == "cancelled"
    before = len(bench.events)
    bench.say("late", generation=1)
    bench.hear(1, True)
    bench.tell("response.create")
    assert len(bench.events) == before
