"""``voicechat ask``: of a server that runs and of one that is started, both with a cascade without models."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.served_double import served
from tests.cascade_double import DoubleCascade, DoubleResponse
from tests.speech import silence, voice, write_wav
from voicechat import cli
from voicechat.assemble import AssembleError
from voicechat.bench import served as bench_served
from voicechat.bench.child import ServerError
from voicechat.config import Settings
from voicechat.contract.errors import Overloaded, StageFailed
from voicechat.contract.events import Event, Heard
from voicechat.contract.requests import AudioPart, ResponseRequest, TextPart
from voicechat.media.decode import decode_audio


class Hearing(DoubleResponse):
    """Says what it heard first, as the real cascade does."""

    async def __aiter__(self) -> AsyncIterator[Event]:
        parts = self._cascade.requests[-1].messages[-1].parts
        if any(isinstance(part, AudioPart) for part in parts):
            yield Heard((self._cascade.transcripts[0],))
        async for event in super().__aiter__():
            yield event


class HearingCascade(DoubleCascade):
    """:class:`DoubleCascade` with ears."""

    def respond(self, request: ResponseRequest) -> DoubleResponse:
        self.requests.append(request)
        self.responses.append(Hearing(self, request, f"double-{len(self.requests)}"))
        return self.responses[-1]


@pytest.fixture
def cascade() -> HearingCascade:
    return HearingCascade(word_delay=0.001, first_delay=0.01)


@pytest.fixture(params=["here", "server"])
def way(request: pytest.FixtureRequest, cascade: HearingCascade, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Words of the command line that ask a server that is started for it, or one that runs."""
    if request.param == "server":
        with served(cascade) as base:
            yield ["--server", base]
        return

    @contextlib.asynccontextmanager
    async def child(arguments: list[str], **_: Any) -> AsyncIterator[tuple[str, float]]:
        assert arguments == []
        with served(cascade) as base:
            yield base, 0.1

    monkeypatch.setattr(bench_served, "assemble", lambda settings: None)
    monkeypatch.setattr(bench_served, "child_server", child)
    yield []


@pytest.fixture
def question(tmp_path: Path) -> Path:
    return write_wav(tmp_path / "question.wav", voice(0.8), 16_000)


def test_a_spoken_question(
    way: list[str], cascade: HearingCascade, question: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.wav"
    assert cli.main(["ask", str(question), "-o", str(output), *way]) == 0
    out = capsys.readouterr().out
    assert "You:     hello there\n" in out
    assert "Answer:  You said: something.\n" in out
    assert f"Sound:   {output}, 0.9 s" in out
    assert "first sound received" in out
    assert "whole answer" in out
    sound = decode_audio(output.read_bytes())
    assert len(sound) / 16_000 == pytest.approx(0.9, abs=0.01)
    (request,) = cascade.requests
    (part,) = request.messages[0].parts
    assert isinstance(part, AudioPart)
    np.testing.assert_allclose(part.pcm, voice(0.8), atol=2e-4)
    assert request.latency_first


def test_a_typed_question_as_json(
    way: list[str], cascade: HearingCascade, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.wav"
    words = ["ask", "--text", "Who?", "--json", "--quality", "--max-tokens", "5", "-o", str(output), *way]
    assert cli.main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["model"] == "double"
    assert answer["transcript"] is None
    assert answer["answer"] == "You said: Who?."
    assert answer["finish_reason"] == "stop"
    assert answer["output"] == str(output)
    assert answer["audio_s"] == pytest.approx(0.9)
    assert 0 < answer["ttfa_s"] <= answer["total_s"]
    assert answer["rtf"] == pytest.approx(answer["total_s"] / 0.9)
    assert answer["times"]["done"] > 0
    (request,) = cascade.requests
    assert request.messages[0].parts == (TextPart("Who?"),)
    assert not request.latency_first
    assert request.sampling.max_tokens == 5


def test_spoken_and_typed_at_once(
    way: list[str], cascade: HearingCascade, question: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ask", str(question), "--text", "Is it?", "-o", str(tmp_path / "o.wav"), *way]) == 0
    assert "You:     Is it? / hello there\n" in capsys.readouterr().out
    assert len(cascade.requests[0].messages[0].parts) == 2


def test_the_default_output(
    way: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ask", "--text", "Who?", *way]) == 0
    assert (tmp_path / "answer.wav").is_file()
    capsys.readouterr()


def test_no_words_in_it(
    way: list[str], cascade: HearingCascade, question: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cascade.transcripts = [""]
    output = tmp_path / "out.wav"
    assert cli.main(["ask", str(question), "-o", str(output), *way]) == 1
    assert "no words could be made out" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("error", [Overloaded("All slots are taken."), StageFailed("talker", "The talker died.")])
def test_a_cascade_that_fails(
    way: list[str],
    cascade: HearingCascade,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: Overloaded | StageFailed,
) -> None:
    cascade.fail_respond, cascade.fail_after = error, 1
    output = tmp_path / "out.wav"
    assert cli.main(["ask", "--text", "Who?", "-o", str(output), *way]) == 1
    assert str(error) in capsys.readouterr().err
    assert not output.exists()


def test_wrong_input_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def assemble(_: Settings) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(bench_served, "assemble", assemble)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.wav").write_text("hello", encoding="utf-8")
    (tmp_path / "empty.wav").write_bytes(b"")
    write_wav(tmp_path / "quiet.wav", silence(1.0), 16_000)
    cases = [
        (["nowhere.wav"], "nowhere.wav: No such file"),
        (["."], "directory"),
        (["text.wav"], "text.wav: the data is not a WAV"),
        (["empty.wav"], "empty.wav: the audio is empty"),
        (["quiet.wav"], "quiet.wav: there is only silence"),
        ([], "give a sound file"),
        (["--text", "  "], "--text is empty"),
        (["--text", "Hi", "--max-tokens", "0"], "--max-tokens"),
        (["--text", "Hi", "-o", "nowhere/a.wav"], "no such folder"),
        (["--text", "Hi", "--model", "nobody"], "no such model"),
        (["--text", "Hi", "--set", "server.prot=1"], "did you mean server.port"),
    ]
    for words, message in cases:
        assert cli.main(["ask", *words]) == 2, words
        assert message in capsys.readouterr().err


def test_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ask", "--text", "Hi", "-o", str(tmp_path / "a.wav"), "--server", "http://127.0.0.1:9"]
    assert cli.main(words) == 1
    assert "can't be reached" in capsys.readouterr().err


def test_an_output_that_cannot_be_written(way: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "--text", "Hi", "-o", str(tmp_path), *way]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_a_server_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.asynccontextmanager
    async def child(arguments: list[str], **_: Any) -> AsyncIterator[tuple[str, float]]:
        assert arguments == ["--set", "talker.threads=3", "--model", "embedded-tiny"]
        raise ServerError("the talker stage did not start")
        yield

    monkeypatch.setattr(bench_served, "assemble", lambda settings: None)
    monkeypatch.setattr(bench_served, "child_server", child)
    words = ["--model", "embedded-tiny", "--set", "talker.threads=3"]
    assert cli.main(["ask", "--text", "Hi", "-o", str(tmp_path / "a.wav"), *words]) == 1
    assert "the talker stage did not start" in capsys.readouterr().err


def test_a_model_that_cannot_be_assembled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def assemble(_: Settings) -> None:
        raise AssembleError("the disk is full")

    monkeypatch.setattr(bench_served, "assemble", assemble)
    assert cli.main(["ask", "--text", "Hi", "-o", str(tmp_path / "a.wav")]) == 1
    assert "the disk is full" in capsys.readouterr().err
