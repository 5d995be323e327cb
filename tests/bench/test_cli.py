"""``voicechat bench`` as a user runs it, against the faces over a cascade without models."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench.served_double import served
from tests.cascade_double import DoubleCascade
from tests.speech import silence, voice
from voicechat import cli
from voicechat.bench import spoken
from voicechat.bench.questions import QUESTIONS
from voicechat.contract.errors import StageFailed

SUMMARY = {"p50", "p95", "mean", "least", "most", "count"}


@pytest.fixture
def cascade() -> DoubleCascade:
    return DoubleCascade(word_delay=0.005)


@pytest.fixture
def server(cascade: DoubleCascade) -> Iterator[str]:
    with served(cascade) as base:
        yield base


@pytest.fixture(autouse=True)
def _no_voice_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def speak(texts: Any, rate: int, name: str | None = None) -> tuple[str, list[Any]]:
        return name or "double", [_sound(rate) for _ in texts]

    monkeypatch.setattr(spoken, "speak", speak)


def _sound(rate: int) -> Any:
    import numpy as np

    return np.concatenate([silence(0.4, rate), voice(0.7, rate)])


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = cli.main(["bench", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_rest(server: str, cascade: DoubleCascade, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(
        capsys, "rest", "--server", server, "--turns", "5", "--concurrency", "2", "--warmup", "1", "--max-tokens", "9"
    )
    assert code == 0
    assert report["schema"] == "voicechat-bench/1"
    assert report["kind"] == "rest"
    assert report["model"] == "double"
    assert report["server_start_s"] is None
    assert report["naive"] is None
    assert report["settings"]["users"] == 2
    assert report["settings"]["voice"] is None
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["packages"]["numpy"]
    for name in ("ttfa_s", "rtf", "worst_underrun_s", "first_text_s", "whole_reply_s"):
        assert set(report["figures"][name]) == SUMMARY
        assert report["figures"][name]["count"] == 5
    assert report["stages"]["first_audio"]["p50"] <= report["figures"]["ttfa_s"]["p50"]
    assert report["totals"]["turns"] == 5
    assert report["totals"]["failed"] == 0
    assert report["totals"]["all_good"]
    assert report["totals"]["audio_s"] == pytest.approx(sum(turn["audio_s"] for turn in report["turns"]))
    assert report["handoff"]["rows_written"] == 100
    assert report["handoff"]["write_us_per_row"] == pytest.approx(5.0)
    assert report["handoff"]["read_us_per_step"] == pytest.approx(30.0)
    assert report["loop_lag_ms"] == {"p50": 0.1, "p99": 0.9}
    assert {turn["question"] for turn in report["turns"]} == set(QUESTIONS[2:7])
    assert len(cascade.requests) == 7, "one turn to warm up for each user"
    assert all(request.latency_first and request.sampling.max_tokens == 9 for request in cascade.requests)


def test_rest_aloud(server: str, cascade: DoubleCascade, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(
        capsys,
        "rest",
        "--server",
        server,
        "--turns",
        "2",
        "--warmup",
        "0",
        "--spoken",
        "--voice",
        "espeak-ng",
        "--quality",
    )
    assert code == 0
    assert report["settings"]["spoken"]
    assert report["settings"]["voice"] == "espeak-ng"
    assert len(cascade.requests) == 2
    assert all(not request.latency_first for request in cascade.requests)
    part = cascade.requests[0].messages[0].parts[0]
    assert len(part.pcm) == pytest.approx(1.1 * 16_000, abs=2)  # type: ignore[union-attr]


@pytest.mark.parametrize("one_call", [[], ["--one-call"]])
def test_webrtc(server: str, cascade: DoubleCascade, capsys: pytest.CaptureFixture[str], one_call: list[str]) -> None:
    code, report = run(capsys, "webrtc", "--server", server, "--turns", "2", "--warmup", "0", *one_call)
    assert code == 0
    figures = report["figures"]
    assert figures["voice_to_voice_s"]["count"] == figures["voice_to_ear_s"]["count"] == 2
    assert figures["voice_to_voice_s"]["p50"] < figures["voice_to_ear_s"]["p50"], "the packet, then its playing"
    assert "ttfa_s" not in figures
    assert report["stages"]["endpointing"]["p50"] == pytest.approx(0.5)
    assert report["totals"]["audio_s"] == pytest.approx(2 * 4 * 0.3)
    assert [turn["heard"] for turn in report["turns"]] == ["hello there", "hello there"]
    assert report["turns"][0]["answer"] == "You said: hello there."
    assert [len(request.messages) for request in cascade.requests] == ([1, 3] if one_call else [1, 1])


def test_failed_turns_are_told_and_end_in_1(
    server: str, cascade: DoubleCascade, capsys: pytest.CaptureFixture[str]
) -> None:
    cascade.fail_respond = StageFailed("talker", "The talker stage died.")
    code, report = run(capsys, "rest", "--server", server, "--turns", "2", "--warmup", "0")
    assert code == 1
    assert report["totals"]["failed"] == 2
    assert report["figures"] == {}
    assert "The talker stage died." in report["turns"][0]["error"]
    assert cli.main(["bench", "webrtc", "--server", server, "--turns", "1", "--warmup", "0"]) == 1
    out = capsys.readouterr().out
    assert f"failed: {QUESTIONS[0]} the answer broke off: The talker stage died." in out


def test_the_table(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "rest", "--server", server, "--turns", "2"]) == 0
    out = capsys.readouterr().out
    assert "double over rest: 1 at a time, 2 turns (0 failed), typed questions" in out
    for line in ("ttfa (s)", "rtf", "writing a row", "continuity   100% of the streams good", "loop lag"):
        assert line in out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["rest", "--turns", "0"], "at least 1"),
        (["rest", "--concurrency", "-1"], "at least 1"),
        (["rest", "--warmup", "-1"], "not be negative"),
        (["rest", "--turns", "many"], "invalid"),
        (["phone"], "phone"),
        ([], "kind"),
        (["webrtc", "--voice", "nobody"], "nobody"),
    ],
)
def test_usage_errors(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *words])
    assert caught.value.code == cli.USAGE_ERROR
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["webrtc", "--quality"], 2, "--quality"),
        (["rest", "--one-call"], 2, "--one-call"),
        (["rest", "--model", "no-such-model"], 2, "no such model"),
        (["rest", "--set", "pool.slots=none"], 2, "pool.slots"),
        (["rest", "--server", "http://127.0.0.1:9"], 1, "can't be reached"),
    ],
)
def test_other_errors(words: list[str], code: int, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == code
    assert what in capsys.readouterr().err


def test_the_baseline_must_be_of_the_served_model(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "rest", "--server", server, "--naive", "--turns", "1"]) == 2
    assert "the server serves double" in capsys.readouterr().err


def test_a_terminated_benchmark_says_so(
    server: str, cascade: DoubleCascade, capsys: pytest.CaptureFixture[str]
) -> None:
    cascade.first_delay = 30.0

    def terminate() -> None:
        while not cascade.requests:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate, daemon=True)
    thread.start()
    assert cli.main(["bench", "rest", "--server", server, "--turns", "1", "--warmup", "0"]) == 143
    thread.join()
    assert "terminated" in capsys.readouterr().err


def test_calls_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(capsys, "calls", "--model", "embedded-tiny", "--concurrency", "2", "--seconds", "1")
    assert code == 0
    assert (report["schema"], report["model"]) == ("voicechat-calls/1", "double")
    (step,) = report["runs"]
    assert (step["calls"], step["failed"], step["errors"]) == (2, 0, {})
    assert step["connect_ms"]["count"] == 2 and step["connect_ms"]["least"] > 0
    assert step["core_percent"]["call"] == pytest.approx(step["core_percent"]["all"] / 2)
    assert 10 < step["interval_ms"]["p50"] < 60


def test_calls_to_a_server_over_a_bad_network(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--server", server, "--concurrency", "1", "--seconds", "2", "--loss", "30", "--jitter", "30"]
    code, report = run(capsys, "calls", *words)
    assert code == 0 and report["settings"]["cascade"] == "served"
    assert report["runs"][0]["filled_share"] > 0.1, "30 % of the packets are lost"
