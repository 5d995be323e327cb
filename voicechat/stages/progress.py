"""The Talker's progress through a reply's text, and where it must begin anew. Pure.

The Talker was trained on sequences of some tens of seconds. A long reply is therefore spoken in windows: at the pause
before a sentence, once a window is long enough, the engine starts afresh on that sentence, as at the start of a reply.
The same way out serves a Talker that stands still or stops before the end of the text.
"""

from __future__ import annotations

WINDOW_STEPS = 500
"""Steps (40 ms) after which a window ends at the next sentence."""
STALL_STEPS = 50
"""Steps on one row, two seconds, after which the Talker is stuck and is set on the next row."""


class Progress:
    """Follows the pointer, step by step. ``base`` is the row on which the present window began."""

    def __init__(self, window_steps: int = WINDOW_STEPS, stall_steps: int = STALL_STEPS) -> None:
        self._window_steps = window_steps
        self._stall_steps = stall_steps
        self._pauses: set[int] = set()
        self._rows = 0
        self._still = 0
        self._window = 0
        self.base = 0
        self.pointer = 0
        self.steps = 0
        self.dropped = 0
        """Rows that were forgotten; all others are counted from behind them."""

    @property
    def rows(self) -> int:
        """Rows of text so far, without those that were dropped."""
        return self._rows

    @property
    def ahead(self) -> int:
        """Rows behind the one that the Talker stands on."""
        return self._rows - self.pointer

    def add_rows(self, pauses: list[bool]) -> None:
        """Note further rows: for each, whether it is the pause before a sentence (or the end of the text)."""
        self._pauses.update(self._rows + index for index, pause in enumerate(pauses) if pause)
        self._rows += len(pauses)

    def step(self, advance: int) -> bool:
        """One step was spoken and moves the pointer by ``advance``. True if a new window begins, at ``base``."""
        self.steps += 1
        self._window += 1
        self._still = 0 if advance else self._still + 1
        passed = range(self.pointer, self.pointer + advance)
        self.pointer += advance
        if self._window >= self._window_steps:
            pause = next((row for row in passed if row in self._pauses and row != self.base), None)
            if pause is not None and pause < self._rows - 1:
                self._begin(pause)
                return True
        return self._still >= self._stall_steps and self.skip()

    def skip(self) -> bool:
        """Begin a new window on the next row; False if there is none."""
        if self.at_end:
            return False
        self._begin(self.pointer + 1)
        return True

    def drop(self) -> int:
        """Forget the rows before the present window, and count from its first row. Returns how many they were."""
        count = self.base
        self._pauses = {row - count for row in self._pauses if row >= count}
        self._rows -= count
        self.pointer -= count
        self.base = 0
        self.dropped += count
        return count

    @property
    def at_end(self) -> bool:
        """True if the pointer stands on the last of the rows so far, or behind it."""
        return self.pointer >= self._rows - 1

    def _begin(self, row: int) -> None:
        self.base = self.pointer = row
        self._window = self._still = 0
