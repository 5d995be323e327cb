"""``voicechat bench load`` as a user runs it, against the faces over a cascade without models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.bench.served_double import served
from tests.cascade_double import DoubleCascade
from tests.speech import silence, voice
from voicechat import cli
from voicechat.bench import load, load_watch, spoken
from voicechat.bench.baseline import Baseline
from voicechat.bench.load_report import as_text
from voicechat.bench.loop import Outcome
from voicechat.bench.measures import Continuity
from voicechat.bench.turn import Question, Turn
from voicechat.contract.family import PlainAnswer


@pytest.fixture
def server() -> Iterator[str]:
    with served(DoubleCascade(word_delay=0.005)) as base:
        yield base


@pytest.fixture(autouse=True)
def _no_voice_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def speak(texts: Any, rate: int, name: str | None = None) -> tuple[str, list[Any]]:
        return "double", [np.concatenate([silence(0.4, rate), voice(0.7, rate)]) for _ in texts]

    monkeypatch.setattr(spoken, "speak", speak)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = cli.main(["bench", "load", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_users_grow_over_both_transports(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--server", server, "--concurrency", "1,3", "--least", "2", "--turns-each", "1", "--silence-ms", "300")
    code, report = run(capsys, *words)
    assert code == 0, [run["errors"] for run in report["runs"]]
    assert report["schema"] == load.SCHEMA
    assert [(run["transport"], run["users"]) for run in report["runs"]] == [
        ("rest", 1),
        ("ws", 1),
        ("rest", 3),
        ("ws", 3),
    ]
    for one in report["runs"]:
        assert one["totals"]["turns"] == max(2, one["users"])
        assert one["totals"]["failed"] == 0
        assert one["totals"]["audio_s_per_s"] > 0
        assert {"ttfa_s", "rtf", "worst_underrun_s"} <= set(one["figures"])
        assert ("voice_to_voice_s" in one["figures"]) == (one["transport"] == "ws")
        assert one["handoff"]["rows_written"] == 100
        assert one["loop_lag_ms"]["p99"] == 0.9
        assert one["client_lag_ms"]["p99"] >= one["client_lag_ms"]["p50"] >= 0
        assert 0 <= one["good_users"] <= one["users"]
    assert report["naive"] is None
    text = as_text(report)
    assert "rest" in text and "ws" in text


def test_a_profile_is_taken_after_each_step(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--server", server, "--transport", "rest", "--concurrency", "2", "--least", "2", "--turns-each", "1")
    code, report = run(capsys, *words, "--profile", "--client-processes", "2")
    assert code == 0
    assert report["runs"][0]["client_processes"] == 2
    assert report["runs"][0]["totals"]["turns"] == 2
    profile = report["runs"][0]["profile"]
    assert profile["talker"]["engine"]["gpu"]["rows_to_host"] == 0
    text = as_text(report)
    assert "100 steps" in text
    assert "0 of them rows" in text
    assert "no answer" in text


def test_a_server_that_does_not_allow_it(capsys: pytest.CaptureFixture[str]) -> None:
    with served(DoubleCascade(), profile=False) as base:
        code, report = run(
            capsys, "--server", base, "--transport", "rest", "--concurrency", "1", "--least", "1", "--profile"
        )
    assert code == 0
    assert "404" in report["runs"][0]["profile"]["server"]["error"]
    assert "has to allow it" in as_text(report)


def test_failures_are_told_by_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    from voicechat.contract.errors import StageFailed

    with served(DoubleCascade(fail_respond=StageFailed("talker", "gone"))) as base:
        code, report = run(capsys, "--server", base, "--transport", "rest", "--concurrency", "2", "--least", "2")
    assert code == 1
    assert report["runs"][0]["totals"]["failed"] == 4
    assert sum(report["runs"][0]["errors"].values()) == 4
    assert "gone" in next(iter(report["runs"][0]["errors"]))
    assert "gone" in as_text(report)


@pytest.mark.parametrize("words", [("--concurrency", "0"), ("--concurrency", "1,x"), ("--transport", "pigeon")])
def test_options_that_make_no_sense(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "load", *words])
    assert ended.value.code == 2


async def test_the_baseline_by_itself() -> None:
    class Naive:
        facts = {"threads": 2}

        async def ask(self, question: Question, max_tokens: int | None, timeout_s: float) -> PlainAnswer:
            return PlainAnswer(text="x", audio_s=3.0, total_s=2.0, times={"thinker": 1.0, "voicebox": 2.0})

    baseline = Baseline(Naive(), 9, 1.0)  # type: ignore[arg-type]
    for _ in range(4):
        await baseline.ask(Question("?"))
    summary = baseline.summary()
    assert summary["throughput"] == {"audio_s_per_s": 1.5, "requests_per_s": 0.5}
    ratios = load._ratios([{"transport": "ws", "users": 4, "totals": {"audio_s_per_s": 6.0}}], summary)
    assert ratios == [{"transport": "ws", "users": 4, "throughput": 4.0}]


def test_good_users_are_counted_by_their_streams() -> None:
    good, bad = Continuity(0.0, 0.0, 0), Continuity(0.5, 0.5, 1)
    outcome = Outcome([Turn("a", continuity=good), Turn("b", continuity=bad), Turn("c", error="x"), Turn("d")])
    assert load._good_users(outcome, 8) == 2


class _Library:
    class NVMLError(Exception):
        pass

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=30 * (handle + 1))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=(handle + 1) << 30)


async def test_gpus_are_watched() -> None:
    import asyncio

    async with load_watch.watching(load_watch.Gpus(_Library())) as watched:
        await asyncio.sleep(0.25)
    assert [gpu["utilisation_mean"] for gpu in watched.gpus] == [30.0, 60.0]
    assert [gpu["memory_mb"] for gpu in watched.gpus] == [1024.0, 2048.0]


async def test_no_gpus_are_nothing_to_watch() -> None:
    import asyncio

    async with load_watch.watching(load_watch.Gpus(_Library(fails=True))) as watched:
        await asyncio.sleep(0.05)
    assert watched.gpus == []
