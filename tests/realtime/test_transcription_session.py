"""Sessions that only write down what is said: their settings, their events, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.realtime.bench import MODEL, Bench, message
from voicechat.realtime.errors import ClientError
from voicechat.realtime.settings import SessionConfig


def listening(asked: str | None = None, **update: Any) -> Bench:
    bench = Bench(SessionConfig.transcription_session(MODEL, asked), eager=True)
    if update:
        bench.tell("session.update", session={"type": "transcription", "audio": {"input": update}})
    return bench


def test_how_it_is_shown() -> None:
    bench = listening("gpt-4o-transcribe")
    (created,) = bench.events
    assert created["type"] == "session.created"
    session = created["session"]
    assert (session["type"], session["object"]) == ("transcription", "realtime.transcription_session")
    heard = session["audio"]["input"]
    assert session["audio"].keys() == {"input"} and "instructions" not in session and "model" not in session
    assert heard["transcription"] == {"model": "gpt-4o-transcribe"}
    assert heard["turn_detection"] == {
        "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500,
    }  # fmt: skip


@pytest.mark.parametrize("detection", ["server_vad", "semantic_vad"])
def test_a_turn_is_written_down_and_not_answered(detection: str) -> None:
    bench = listening(turn_detection={"type": detection}, transcription={"model": "whisper-1", "language": "en"})
    bench.hear(1.0, True)
    bench.hear(4.0, False)
    bench.understand("hello there")
    bench.pass_time(1.0)
    kinds = bench.kinds()
    for kind in (
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
    ):
        assert kinds.count(kind) == 1
    (done,) = bench.all("conversation.item.input_audio_transcription.completed")
    assert done["transcript"] == "hello there"
    assert done["usage"]["type"] == "duration"
    deltas = [event["delta"] for event in bench.all("conversation.item.input_audio_transcription.delta")]
    assert "".join(deltas) == done["transcript"]
    assert not bench.started and not any(kind.startswith("response.") for kind in kinds)
    bench.check()


def test_by_hand() -> None:
    bench = listening(turn_detection=None)
    bench.hear(1.0, True)
    bench.hear(3.0, False)
    assert not bench.all("input_audio_buffer.committed")
    bench.tell("input_audio_buffer.commit")
    bench.understand("by hand")
    (done,) = bench.all("conversation.item.input_audio_transcription.completed")
    assert done["transcript"] == "by hand"
    assert not bench.started


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("response.create", {}),
        ("response.cancel", {}),
        ("conversation.item.create", {"item": message("hello")}),
        ("output_audio_buffer.clear", {}),
    ],
)
def test_what_belongs_to_conversations(kind: str, fields: dict[str, Any]) -> None:
    bench = listening()
    bench.tell(kind, **fields)
    assert (bench.error()["code"], bench.error()["param"]) == ("unsupported_event", "type")
    assert not bench.started and not bench.session.conversation.items


def test_the_kind_of_a_live_session_stays() -> None:
    bench = listening()
    bench.tell("session.update", session={"type": "realtime", "instructions": "Talk."})
    assert bench.error()["message"] == (
        "Passing a realtime session update event to a transcription session is not allowed."
    )
    other = Bench()
    other.tell("session.update", session={"type": "transcription"})
    assert other.error()["message"] == (
        "Passing a transcription session update event to a realtime session is not allowed."
    )
    assert other.error()["param"] == "session.type"


@pytest.mark.parametrize("field", ["instructions", "tools", "voice", "model", "output_modalities"])
def test_fields_of_conversations(field: str) -> None:
    bench = listening()
    bench.tell("session.update", session={"type": "transcription", field: "x"})
    assert bench.error()["param"] == f"session.{field}"


def test_models() -> None:
    with pytest.raises(ClientError, match="does not exist") as caught:
        SessionConfig.transcription_session(MODEL, "gpt-5")
    assert caught.value.code == "model_not_found"
    bench = listening(transcription={"model": "nobody's"})
    assert (bench.error()["code"], bench.error()["param"]) == (
        "model_not_found", "session.audio.input.transcription.model",
    )  # fmt: skip
    with pytest.raises(ClientError, match="does not exist"):
        SessionConfig("", "anna").updated({"model": "gpt-5"}, MODEL)
    assert SessionConfig("", "anna").updated({"model": "gpt-realtime-mini"}, MODEL).model == "gpt-realtime-mini"
