"""The report from made-up turns."""

from __future__ import annotations

import pytest

from voicechat.bench import report
from voicechat.bench.loop import Outcome
from voicechat.bench.measures import Continuity
from voicechat.bench.turn import Turn


def turn(ttfa: float, *, worst: float = 0.0, error: str | None = None) -> Turn:
    made = Turn("Why?", audio_s=2.0, error=error, continuity=Continuity(worst, worst, int(worst > 0)))
    made.note(ttfa_s=ttfa, rtf=0.4, announcement_us=1000 * ttfa, leading_silence_s=None)
    made.stages = {"thinker_first_token": ttfa / 2}
    return made


def test_figures_leave_out_what_was_not_taken() -> None:
    figures = report.turn_figures([turn(0.1), turn(0.3)])
    assert figures["ttfa_s"]["p50"] == pytest.approx(0.2)
    assert figures["ttfa_s"]["count"] == 2
    assert "leading_silence_s" not in figures
    assert "announcement_us" not in figures
    assert report.median(figures, "ttfa_s") == pytest.approx(0.2)
    assert report.median(figures, "voice_to_voice_s") is None


def test_totals_count_failures_and_broken_streams() -> None:
    outcome = Outcome([turn(0.1), turn(0.1, worst=0.5), turn(0.1, error="no")], wall_s=8.0)
    found = report.totals(outcome)
    assert (found["turns"], found["failed"], found["audio_s"]) == (3, 1, 4.0)
    assert found["audio_s_per_s"] == 0.5
    assert found["requests_per_s"] == 0.25
    assert found["good_share"] == 0.5
    assert not found["all_good"]
    assert report.totals(Outcome([turn(0.1)], 1.0))["all_good"]
    assert report.totals(Outcome())["good_share"] is None


def test_handoff_is_the_difference_of_the_counters() -> None:
    before = {"pool": {"rows_written": 10, "write_ns": 10_000, "rows_read": 5, "read_ns": 1}}
    after = {"pool": {"rows_written": 30, "write_ns": 110_000, "rows_read": 5, "read_ns": 1}}
    found = report.handoff([turn(0.2), turn(0.4)], before, after, 0.25)
    assert found["rows_written"] == 20
    assert found["write_us_per_row"] == pytest.approx(5.0)
    assert found["write_share_of_ttfa"] == pytest.approx(5e-6 / 0.25)
    assert found["read_us_per_step"] is None
    assert found["announcement_us"]["p50"] == pytest.approx(300.0)
    assert report.handoff([], None, None, None)["write_us_per_row"] is None


def test_ratio() -> None:
    assert report.ratio(1.0, 4.0) == 0.25
    assert report.ratio(None, 4.0) is None
    assert report.ratio(1.0, 0.0) is None
