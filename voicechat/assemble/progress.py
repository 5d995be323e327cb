"""Progress bars that also make sense in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_WIDTH = 28


class Bar:
    """Progress of one step, counted in bytes. On a terminal one line is redrawn; elsewhere a line every few seconds.

    Without a stream nothing is shown.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None) -> None:
        self.label = label
        self.total = max(total, 1)
        self.done = 0
        self._stream = stream
        self._tty = stream is not None and stream.isatty()
        self._started = time.monotonic()
        self._shown = self._started
        self._interval = 0.1 if self._tty else 3.0

    def advance(self, amount: int) -> None:
        """Count ``amount`` more bytes."""
        self.set(self.done + amount)

    def set(self, done: int) -> None:
        """Set the count of bytes done."""
        self.done = done
        now = time.monotonic()
        if now - self._shown >= self._interval:
            self._shown = now
            self._draw(now)

    def finish(self) -> None:
        """Draw the last state and end the line."""
        self.done = self.total
        self._draw(time.monotonic())
        self.abandon()

    def abandon(self) -> None:
        """End the line, whatever it says: so does a step that failed."""
        if self._tty:
            self._write("\n")

    def _draw(self, now: float) -> None:
        part = min(self.done / self.total, 1.0)
        filled = round(part * _WIDTH)
        elapsed = max(now - self._started, 1e-6)
        text = (
            f"{self.label:<34.34} [{'#' * filled}{'.' * (_WIDTH - filled)}] {part:4.0%}"
            f" {min(self.done, self.total) / 1e6:7.1f}/{self.total / 1e6:.1f} MB {self.done / 1e6 / elapsed:6.1f} MB/s"
        )
        self._write(f"\r{text}" if self._tty else f"{text}\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


class Reporter:
    """Where the assembler tells what it does: standard error by default, so that standard output stays clean."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet

    def say(self, line: str) -> None:
        """Print one line."""
        if not self._quiet:
            self._stream.write(f"{line}\n")
            self._stream.flush()

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Bar]:
        """A bar over ``total`` bytes, finished when the block ends without an error."""
        bar = Bar(label, total, None if self._quiet else self._stream)
        try:
            yield bar
        except BaseException:
            bar.abandon()
            raise
        bar.finish()
