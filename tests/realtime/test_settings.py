"""A session's settings: what may be changed when, and that the rest stays."""

from __future__ import annotations

from tests.realtime.bench import Bench
from voicechat.realtime.settings import SessionConfig


def test_voice_locks_and_model_stays():
    bench = Bench(SessionConfig("", "anna", model="gpt-realtime"))
    bench.tell("session.update", session={"model": "gpt-realtime", "audio": {"output": {"voice": "ben"}}})
    assert bench.events[-1]["session"]["audio"]["output"]["voice"] == "ben"
    bench.tell("session.update", session={"model": "gpt-5"})
    assert bench.error()["code"] == "cannot_update_model"
    bench.turn()
    bench.say("Hi")
    bench.tell("session.update", session={"audio": {"output": {"voice": "anna"}}})
    assert (bench.error()["code"], bench.error()["param"]) == ("cannot_update_voice", "session.audio.output.voice")


def test_partial_updates():
    bench = Bench()
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"silence_duration_ms": 300}}}})
    detection = bench.events[-1]["session"]["audio"]["input"]["turn_detection"]
    assert (detection["silence_duration_ms"], detection["prefix_padding_ms"]) == (300, 300)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    assert bench.events[-1]["session"]["audio"]["input"]["turn_detection"]["eagerness"] == "auto"
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": None}}, "tracing": "auto"})
    session = bench.events[-1]["session"]
    assert session["audio"]["input"]["turn_detection"] is None
    assert (session["tracing"], session["instructions"]) == ("auto", "Be brief.")
    bench.tell("session.update", session={"audio": {"input": {"transcription": None}}})
    bench.hear(0.5, True)
    bench.tell("input_audio_buffer.commit")
    bench.understand("x")
    assert not [kind for kind in bench.kinds() if "transcription" in kind]
