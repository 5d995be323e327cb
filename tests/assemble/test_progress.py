"""Progress bars on a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from voicechat.assemble.progress import Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_whole_lines() -> None:
    stream = io.StringIO()
    with Reporter(stream).bar("fetch", 2_000_000) as bar:
        bar.advance(1_000_000)
    assert "\r" not in stream.getvalue()
    assert stream.getvalue().endswith("MB/s\n")
    assert "100%" in stream.getvalue()


def test_a_terminal_gets_one_line_that_is_redrawn() -> None:
    stream = Terminal()
    with Reporter(stream).bar("fetch", 10) as bar:
        bar.set(5)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().startswith("\r")


def test_a_failed_step_is_never_shown_as_done() -> None:
    for stream in (io.StringIO(), Terminal()):
        with pytest.raises(ZeroDivisionError), Reporter(stream).bar("fetch", 10) as bar:
            bar.advance(3 // 0)
        assert "100%" not in stream.getvalue()


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(quiet=True)
    reporter.say("line")
    with reporter.bar("fetch", 0) as bar:
        bar.advance(1)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
