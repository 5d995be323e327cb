"""``voicechat bench realtime`` as a user runs it, against the faces over a cascade without models."""

from __future__ import annotations

import gc
import json
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.served_double import served
from tests.cascade_double import DoubleCascade
from tests.speech import silence, voice
from voicechat import cli
from voicechat.bench import realtime
from voicechat.bench.realtime import Conformance, session_of, settled
from voicechat.bench.script import SOUND_RATE, Effect, Entry, Expect, Kind, Recording, Speech, framed, voiced_span
from voicechat.bench.spoken import NoVoice
from voicechat.contract.errors import StageFailed
from voicechat.realtime.settings import SessionConfig

LONG = " ".join(f"word{number}" for number in range(24))
"""An answer of about seven seconds."""


@pytest.fixture
def cascade() -> DoubleCascade:
    return DoubleCascade(transcripts=["Tell me more about it, please."], answer=LONG, word_delay=0.005)


@pytest.fixture
def server(cascade: DoubleCascade) -> Iterator[str]:
    with served(cascade) as base:
        yield base


def recording(kind: Kind, expect: Expect, sound: np.ndarray, words: str = "") -> Recording:
    source = Effect("fan") if expect is Expect.NO_TURN else Speech("words")
    padded, spans = framed(sound.astype(np.float32), [voiced_span(sound.astype(np.float32))])
    name = f"{kind.value.replace(' ', '-')}-01"
    return Recording(Entry(name, kind, expect, source, words, after_s=0.5), padded, spans, "double")


QUESTION = recording(Kind.QUESTION, Expect.ONE_TURN, voice(0.8, SOUND_RATE), "Tell me more about it please")
NOISE = recording(Kind.NOISE, Expect.NO_TURN, silence(0.05, SOUND_RATE, 0.004))
INTERRUPTION = recording(Kind.INTERRUPTION, Expect.INTERRUPTION, voice(1.4, SOUND_RATE))
BACKCHANNEL = recording(Kind.NOISE_IN_REPLY, Expect.NO_INTERRUPTION, silence(0.05, SOUND_RATE, 0.004))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """What is played; the studio is not asked."""
    chosen: list[Recording] = []

    def recordings(options: Any, data: Path) -> Any:
        return chosen, QUESTION, {(0, text): QUESTION for text in realtime.PROMPTS}, 130

    monkeypatch.setattr(realtime, "_recordings", recordings)
    return chosen


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = cli.main(["bench", "realtime", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_turns_over_both_transports(
    server: str, script: list[Recording], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script += [QUESTION, INTERRUPTION]
    code, report = run(capsys, "--server", server, "--warmup", "0", "--keep", str(tmp_path))
    assert code == 0
    assert report["schema"] == "voicechat-bench-realtime/1"
    assert report["model"] == "double"
    assert report["settings"]["detection"] == "semantic_vad"
    assert report["settings"]["eagerness"] == "auto"
    assert list(report["transports"]) == ["ws", "webrtc"]
    for transport, part in report["transports"].items():
        assert part["conformance"]["checked"]
        assert part["conformance"]["events"] > 20
        assert part["conformance"]["violations"] == {}
        assert part["server_errors"] == {}
        for fault in ("cut-off", "missed turn", "missed interrupt", "false interrupt"):
            assert part["behaviour"][fault]["count"] == 0, (transport, fault)
        figures = part["figures"]
        assert figures["voice_to_voice_s"]["count"] == 2
        assert figures["turn_decided_s"]["least"] > 0.2, "a pause was waited for"
        assert figures["voice_to_voice_s"]["least"] > 0.2
        assert figures["barge_in_stop_s"]["count"] == 1
        assert 0 < figures["barge_in_stop_s"]["most"] < 1.5
        assert "endpointing" in part["stages"]
        assert part["words_found"] == 1.0
    ear = {name: part["figures"]["voice_to_ear_s"] for name, part in report["transports"].items()}
    assert ear["webrtc"]["p50"] > report["transports"]["webrtc"]["figures"]["voice_to_voice_s"]["p50"]
    for turn in report["turns"]:
        assert (turn["faults"], turn["error"], turn["void"]) == ([], None, None)
        path = tmp_path / turn["transport"] / f"{turn['name']}.wav"
        with wave.open(str(path)) as file:
            both = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
        assert both.shape[1] == 2
        assert (np.abs(both).max(axis=0) > 1000).all(), "the user and the reply are on it"
        told = json.loads(path.with_suffix(".json").read_text())
        assert told["verdict"]["name"] == turn["name"]
        assert told["events"][0][1]["type"] == "session.created"


def test_what_is_no_speech_disturbs_nothing(
    server: str, script: list[Recording], capsys: pytest.CaptureFixture[str]
) -> None:
    script += [NOISE, BACKCHANNEL]
    code, report = run(capsys, "--server", server, "--warmup", "1", "--transport", "ws", "--detection", "server_vad")
    assert code == 0
    assert report["settings"]["eagerness"] is None
    part = report["transports"]["ws"]
    assert part["behaviour"]["false turn"] == {"count": 0, "of": 2, "share": 0.0}
    assert part["behaviour"]["false interrupt"] == {"count": 0, "of": 1, "share": 0.0}
    assert [turn["kind"] for turn in report["turns"]] == ["noise", "noise in reply"]


def test_the_tables(server: str, script: list[Recording], capsys: pytest.CaptureFixture[str]) -> None:
    script += [QUESTION]
    assert cli.main(["bench", "realtime", "--server", server, "--transport", "ws", "--warmup", "0"]) == 0
    out = capsys.readouterr().out
    for line in ("double, realtime over ws: 1 turns of the held-out set of 130, semantic_vad (auto)",
                 "voice to voice (s)",
                 "0 of 1 (0.0%)", "events, 0 violations", "behaviour"):  # fmt: skip
        assert line in out


def test_a_reply_that_is_too_short_is_asked_for_again(
    server: str, script: list[Recording], cascade: DoubleCascade, capsys: pytest.CaptureFixture[str]
) -> None:
    cascade.answer = "Hello there."
    script += [INTERRUPTION]
    code, report = run(capsys, "--server", server, "--warmup", "0", "--transport", "ws")
    assert code == 0
    assert report["turns"][0]["void"] == "the reply was over too soon"
    assert len(cascade.requests) >= len(realtime.PROMPTS)
    assert report["transports"]["ws"]["behaviour"]["missed interrupt"]["of"] == 0


def test_failures(
    server: str, script: list[Recording], cascade: DoubleCascade, capsys: pytest.CaptureFixture[str]
) -> None:
    script += [QUESTION]
    cascade.fail_respond = StageFailed("talker", "The talker stage died.")
    words = ["bench", "realtime", "--server", server, "--transport", "ws"]
    assert cli.main(words) == 1
    assert "not a question is answered: the reply failed: The talker stage died." in capsys.readouterr().err
    assert cli.main([*words, "--eagerness", "low", "--detection", "server_vad"]) == 2
    assert "--eagerness" in capsys.readouterr().err
    assert cli.main(["bench", "realtime", "--server", "http://127.0.0.1:9", "--transport", "ws"]) == 1
    assert "can't be reached" in capsys.readouterr().err
    cascade.ready = False
    assert cli.main(words) == 1
    assert "503" in capsys.readouterr().err


def test_nothing_that_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nobody(folder: Path, texts: object) -> Any:
        raise NoVoice("nothing here can speak")

    monkeypatch.setattr(realtime, "Studio", nobody)
    assert cli.main(["bench", "realtime", "--server", "http://127.0.0.1:9"]) == 1
    assert "nothing here can speak" in capsys.readouterr().err


def test_events_that_are_not_of_the_protocol_are_found() -> None:
    conformance = Conformance()
    session = SessionConfig("", "heart").to_dict("sess_1", "double", 0)
    good = {"type": "session.created", "event_id": "event_1", "session": session}
    found = conformance.violations(
        [good, {"type": "response.audio.delta", "event_id": "e"}, {"type": "input_audio_buffer.committed"}]
    )
    assert conformance.events == 3
    assert found[0] == "response.audio.delta: no such event"
    assert found[1].startswith("input_audio_buffer.committed: event_id: Field required")
    assert len(found) == 2


def test_a_full_collection_takes_no_time_while_turns_are_measured() -> None:
    def took() -> float:
        begun = time.process_time()
        gc.collect()
        return time.process_time() - begun

    before = took()
    with settled():
        assert gc.get_freeze_count() > 50_000
        assert took() < before / 4
    assert gc.get_freeze_count() == 0


def test_sessions_are_as_asked_for() -> None:
    session = session_of("some", "semantic_vad", "high", at_length=True)
    assert session["audio"]["input"]["turn_detection"] == {"type": "semantic_vad", "eagerness": "high"}
    other = session_of("some", "server_vad", None, at_length=False)
    assert other["audio"]["input"]["turn_detection"] == {"type": "server_vad"}
    assert other["instructions"] != session["instructions"]
