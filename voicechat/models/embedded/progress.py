"""The Talker's progress through a reply's text, and where it must begin anew. Pure.

The Talker was trained on sequences of some tens of seconds. A long reply is therefore spoken in windows: at the pause
before a sentence, once a window is long enough, the engine starts afresh on that sentence, as at the start of a reply.
The same way out serves a Talker that stands still or stops before the end of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from voicechat.models.embedded.alphabet import LEFT, NONE_SYMBOL, RIGHT, SYMBOL_WINDOW

PAUSE = 0
"""Symbol of the pause before a sentence, and of the end of the text."""
WINDOW_STEPS = 500
"""Steps (40 ms) after which a window ends at the next sentence."""
STALL_STEPS = 50
"""Steps on one row, two seconds, after which the Talker is stuck and is set on the next row."""

_NONE = bytes((NONE_SYMBOL,))


class Progress:
    """Follows the pointer through the rows' symbols, step by step. The present window began on row ``base``."""

    def __init__(self, window_steps: int = WINDOW_STEPS, stall_steps: int = STALL_STEPS) -> None:
        self._window_steps = window_steps
        self._stall_steps = stall_steps
        self._symbols = bytearray()
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
        return len(self._symbols)

    @property
    def ahead(self) -> int:
        """Rows behind the one that the Talker stands on."""
        return self.rows - self.pointer

    def add_rows(self, symbols: Sequence[int]) -> None:
        """Note the symbols of further rows. Raises ValueError for one that is no byte."""
        self._symbols.extend(symbols)

    def symbols(self) -> bytes:
        """What the Talker sees where the pointer stands, 9 bytes: symbols from three rows before it to five behind it.

        Rows before the present window and behind the text are :data:`NONE_SYMBOL`.
        """
        first = max(self.base, self.pointer - LEFT)
        seen = bytes(self._symbols[first : self.pointer + RIGHT + 1])
        return seen.ljust(self.pointer + RIGHT + 1 - first, _NONE).rjust(SYMBOL_WINDOW, _NONE)

    def step(self, advance: int) -> bool:
        """One step was spoken and moves the pointer by ``advance``. True if a new window begins, at ``base``."""
        self.steps += 1
        self._window += 1
        self._still = 0 if advance else self._still + 1
        passed = range(self.pointer, self.pointer + advance)
        self.pointer += advance
        if self._window >= self._window_steps:
            pause = next((row for row in passed if self._is_pause(row) and row != self.base), None)
            if pause is not None and pause < self.rows - 1:
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
        del self._symbols[:count]
        self.pointer -= count
        self.base = 0
        self.dropped += count
        return count

    @property
    def at_end(self) -> bool:
        """True if the pointer stands on the last of the rows so far, or behind it."""
        return self.pointer >= self.rows - 1

    def _is_pause(self, row: int) -> bool:
        return row < self.rows and self._symbols[row] == PAUSE

    def _begin(self, row: int) -> None:
        self.base = self.pointer = row
        self._window = self._still = 0
