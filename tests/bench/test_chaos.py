"""``bench chaos`` and ``bench soak``: on the faces without models, and what they call a loss."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.bench.served_double import served
from tests.cascade_double import DoubleCascade
from voicechat.bench import chaos
from voicechat.bench.upkeep import Holdings, lost
from voicechat.cli import main

HELD = Holdings(
    slots_free=8, slots_total=8, waiting=0, tasks=5, rss_kb=1000, descriptors=20, shared_files=1
)  # fmt: skip


def test_what_is_lost() -> None:
    assert lost(HELD, HELD) == []
    assert lost(HELD, replace(HELD, slots_free=7)) == ["1 slots are not free, 0 requests wait"]
    assert lost(HELD, replace(HELD, tasks=10, descriptors=40, shared_files=2)) == [
        "5 tasks more than before",
        "20 descriptors more than before",
        "1 shared files more than before",
    ]


def test_soak(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything comes back, also from those who leave in the middle."""
    with served(DoubleCascade(answer="Yes.", word_delay=0.0, first_delay=0.0)) as url:
        main(["bench", "soak", "--server", url, "--turns", "60", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["turns"], report["connects"], report["errors"]) == (60, 6, {})
    assert report["connects_refused"] == 0
    assert [what for what in report["lost"] if "memory" not in what] == []


def test_chaos_without_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """Floods and rude callers alone; who asks meanwhile is answered."""
    with served(DoubleCascade(answer="Yes.", word_delay=0.0, first_delay=0.0)) as url:
        code = main(["bench", "chaos", "--server", url, "--blows", "2", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [blow["kind"] for blow in report["blows"]] == ["flood", "rude"]
    assert report["requests"]["answered"] > 0 and set(report["requests"]) == {"answered"}
    assert (code, report["passed"]) == (0, True), report["wrong"]
    assert "passed" in chaos.as_text(report)


def test_a_server_without_stages_cannot_be_struck(capsys: pytest.CaptureFixture[str]) -> None:
    with served(DoubleCascade()) as url:
        assert main(["bench", "chaos", "--server", url, "--kinds", "kill"]) == 2
    assert "no stages" in capsys.readouterr().err
