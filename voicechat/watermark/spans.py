"""From windows in which a mark was found to the stretches that carry it, to a few hundredths of a second."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from voicechat.watermark.code import Floats
from voicechat.watermark.features import STEP_MS, STEPS_OF_A_ROW
from voicechat.watermark.keys import Key
from voicechat.watermark.pattern import ROWS, Pattern
from voicechat.watermark.report import Span
from voicechat.watermark.search import Found

_APART_STEPS = 4
"""Two windows whose patterns lie further apart than this are of two sounds."""
_ROUNDS = 3
_BRIDGED_S = 4.0
"""A stretch goes on over so long a pause without a find."""


@dataclass(slots=True)
class Track:
    """Windows of one key and payload whose patterns lie in one line, and what each of its rows says.

    Row n of the track lies at step ``origin + n * stride``; ``agree`` and ``size`` are the sums over the bands of the
    contrasts with the mark's signs, and of their magnitudes.
    """

    key: Key
    best: Found
    origin: float
    stride: float
    first_row: int
    last_step: int
    checked: bool
    agree: array[float] = field(default_factory=lambda: array("f"))
    size: array[float] = field(default_factory=lambda: array("f"))

    @classmethod
    def begin(cls, key: Key, found: Found, start: int) -> Track:
        """A track of a find in the window that begins at step ``start``."""
        stride = STEPS_OF_A_ROW / found.hypothesis.speed
        # row numbers of a track are those of the pattern, counted on; row ``found.row`` lies at the window's first
        origin = start + found.first - found.row * stride
        return cls(key, found, origin, stride, 0, start, found.payload is not None)

    def continues(self, key: Key, found: Found, start: int) -> bool:
        """Whether a find is of this track."""
        if (key, found.word) != (self.key, self.best.word):
            return False
        if (start - self.last_step) * STEP_MS / 1000 > _BRIDGED_S:
            return False
        # the middle of the window, as each of the two sees the pattern there
        rows = (start + found.first - self.origin) / self.stride - found.row
        return abs(rows - round(rows / ROWS) * ROWS) * self.stride <= _APART_STEPS

    def add(self, found: Found, start: int) -> None:
        """Take a find of this track."""
        self.last_step = start
        self.checked = self.checked or found.payload is not None
        if found.log_p < self.best.log_p:
            self.best = found

    def watch(self, contrasts: Floats, begin: int, first: int, last: int, pattern: Pattern) -> None:
        """See what the rows from step ``first`` to ``last`` say; ``contrasts`` begins at step ``begin``."""
        low = math.ceil((max(first, begin) - self.origin) / self.stride)
        high = math.floor((min(last, begin + len(contrasts) - 1) - self.origin) / self.stride)
        if self.agree:
            low = max(low, self.first_row + len(self.agree))
        else:
            self.first_row = low
        if high < low:
            return
        rows = np.arange(low, high + 1)
        steps = np.rint(self.origin + rows * self.stride).astype(np.int64) - begin
        seen = contrasts[np.clip(steps, 0, len(contrasts) - 1), self.best.hypothesis.scale]
        marked = pattern.marked(self.best.word)[rows % ROWS]
        self.agree.extend((seen * marked).sum(1).tolist())
        self.size.extend(np.abs(seen).sum(1).tolist())

    def bounds(self) -> tuple[float, float]:
        """Begin and end in seconds: where what the rows say changes from nothing to the mark, and back."""
        agree, size = np.array(self.agree), np.array(self.size)
        if not len(agree) or size.sum() <= 0:
            return (0.0, 0.0)
        first, last = 0, len(agree) - 1
        for _ in range(_ROUNDS):  # how clear the mark is shows within its bounds, not where there is none
            inside = slice(first, last + 1)
            clear = max(0.02, agree[inside].sum() / max(size[inside].sum(), 1e-9))
            first, last = _richest(agree - clear / 2 * size)
        return self._seconds(first - 0.5), self._seconds(last + 0.5)

    def _seconds(self, row: float) -> float:
        return max(0.0, (self.origin + (self.first_row + row) * self.stride) * STEP_MS / 1000)


def _richest(balance: npt.NDArray[np.float64]) -> tuple[int, int]:
    """First and last index of the run with the greatest sum."""
    before = np.concatenate([[0.0], np.cumsum(balance)])
    lowest = np.minimum.accumulate(before[:-1])
    last = int((before[1:] - lowest).argmax())
    first = int(before[: last + 1].argmin())
    return first, last


def joined(spans: Sequence[Span]) -> list[Span]:
    """Each marked stretch once, in order of time.

    One mark may be seen twice, by neighbouring speeds: of stretches of one key that lie over each other the clearest
    stays, and grows by those of the same payload.
    """
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.p_value, -span.score)):
        over = [n for n, other in enumerate(kept) if other.key_id == span.key_id and _over(span, other)]
        if not over:
            kept.append(span)
            continue
        clearest = kept[over[0]]
        if span.payload in (None, clearest.payload) or clearest.payload is None:
            start, end = min(span.start_s, clearest.start_s), max(span.end_s, clearest.end_s)
            payload = span.payload if clearest.payload is None else clearest.payload
            kept[over[0]] = replace(clearest, start_s=start, end_s=end, payload=payload)
    return sorted(kept, key=lambda span: (span.start_s, span.end_s))


def _over(span: Span, other: Span) -> bool:
    """Whether half of the shorter of two stretches or more lies within the other."""
    common = min(span.end_s, other.end_s) - max(span.start_s, other.start_s)
    return common > 0.5 * min(span.end_s - span.start_s, other.end_s - other.start_s)
