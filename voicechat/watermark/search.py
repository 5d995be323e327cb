"""One window of sound against one key: over every place in the pattern and every speed, and what it then says.

The signs of a key are to the sound as independent throws of a coin. For a given sound, place, speed and payload the sum
of the contrasts with the signs, divided by the root of the sum of their squares, is a normed Rademacher sum ``z``; by
Hoeffding (1963) it exceeds ``z`` with a chance of at most ``exp(-z² / 2)``, whatever the sound. Times the number of
places, speeds and payloads that were looked at (Bonferroni), this is the p-value: it rests on nothing fitted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voicechat.watermark.code import AT_ONCE, PAYLOAD_BITS, SYMBOLS, Floats, nearest, signs_of
from voicechat.watermark.features import STEPS_OF_A_ROW
from voicechat.watermark.pattern import BANDS, PILOT, ROWS, Pattern, layout
from voicechat.watermark.report import FALSE_POSITIVE_RATE

SPEEDS = (1.0, 0.98, 0.987, 0.9935, 1.0065, 1.013, 1.02)
"""By how much faster than made the sound may run; those in between are near enough to one of them."""

SCALES = (1.0, 0.98, 1.02)
"""By how much its frequencies may have risen."""

SURE = 7.0
"""A payload is told if every other is so much less likely: the natural logarithm of about a thousand."""

INTERESTING = math.log(FALSE_POSITIVE_RATE)
"""A window's ``log_p`` from which it may count. What is below is exact; where nothing can be, not all places are asked
for all payloads, and ``score`` and ``log_p`` are of those that were: the p-value is no lower for it."""

_CANDIDATES = 24
"""Places that are looked at whole, of those where the pilot is seen best."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A speed, and the index in :data:`SPEEDS` by whose value the frequencies have risen."""

    speed: float
    scale: int


HYPOTHESES = tuple(
    Hypothesis(speed, scale)
    for speed in SPEEDS
    for scale in ((0,) if abs(speed - 1) < 0.01 else (0, 1) if speed < 1 else (0, 2))
)

_LOG_PLACES = math.log(len(HYPOTHESES) * ROWS * STEPS_OF_A_ROW)
_LOG_WORDS = PAYLOAD_BITS * math.log(2)


@dataclass(frozen=True, slots=True)
class Found:
    """The best that a window says.

    ``score`` is z; ``log_p`` the natural logarithm of its p-value, for the window and key alone; ``first`` the step of
    the window at which row ``row`` of the pattern lies; ``word`` the payload that was seen best, ``payload`` the same
    if the code's check holds: if no other word is within :data:`SURE` of it.
    """

    score: float
    log_p: float
    hypothesis: Hypothesis
    first: int
    row: int
    word: int
    payload: int | None


class Template:
    """What sound is compared with for one key, ready to be multiplied; about 4 MB."""

    def __init__(self, pattern: Pattern) -> None:
        pilot = np.where(pattern.symbols == PILOT, pattern.signs, 0).astype(np.float32)
        self.places = _at_every_row(pilot)
        """The pilot from every row on, float32 ``[ROWS * BANDS, ROWS]``."""
        numbers = np.where(pattern.symbols == PILOT, SYMBOLS, pattern.symbols)
        own = numbers[:, :, None] == np.arange(SYMBOLS + 1)
        self.symbols = (own * pattern.signs[:, :, None]).reshape(-1, SYMBOLS + 1)
        """The signs of each symbol's tiles, the pilot's last, float32 ``[ROWS * BANDS, SYMBOLS + 1]``."""


class Window:
    """A stretch of sound as every speed and place within a row sees it; the same for all keys."""

    def __init__(self, contrasts: Floats, rows: int) -> None:
        """The first ``rows`` rows of ``contrasts``, float32 ``[steps, scales, BANDS]``, scales as :data:`SCALES`.

        What lies beyond the end of the sound says nothing: it is zero.
        """
        flat = contrasts.reshape(-1, BANDS)
        places = _places(rows)
        if int(places.max()) >= len(flat):
            flat = np.concatenate([flat, np.zeros((int(places.max()) + 1 - len(flat), BANDS), np.float32)])
        self._taken = np.take(flat, places, axis=0)  # [hypotheses * lags, rows, BANDS]

    def folded(self, rows: int) -> Floats:
        """Rows of the same row of the pattern added up: float32 ``[hypotheses * lags, min(rows, ROWS), BANDS]``."""
        taken = self._taken[:, :rows]
        if rows <= ROWS:
            return taken
        out = taken[:, :ROWS].copy()
        for first in range(ROWS, rows, ROWS):
            more = taken[:, first : first + ROWS]
            out[:, : more.shape[1]] += more
        return out


class Places:
    """A window's first rows, folded, and how much sound lies under the pilot at every row that may come first."""

    def __init__(self, window: Window, rows: int) -> None:
        self.folded = window.folded(rows)
        classes, masks = _pilot_classes()
        energy = np.square(self.folded) @ classes
        self.under_pilot = np.sqrt(energy.reshape(len(energy), -1) @ masks[: energy[0].size] + 1e-6)
        """Float32 ``[hypotheses * lags, ROWS]``."""
        self.norm = np.sqrt(energy.sum((1, 2)) + 1e-6)
        """Float32 ``[hypotheses * lags]``."""


def search(places: Places, template: Template, expected: Sequence[int] = ()) -> Found:
    """Look for one key. Half of the p-value's budget goes to the ``expected`` payloads, if there are any: to look for
    a few takes a weaker mark than to look for all.
    """
    folded = places.folded
    seen = folded.reshape(len(folded), -1) @ template.places[: folded[0].size]
    seen /= places.under_pilot
    best = np.argpartition(seen.reshape(-1), -_CANDIDATES)[-_CANDIDATES:]
    lag, row = np.divmod(best, ROWS)
    took = np.zeros((_CANDIDATES, ROWS, BANDS), np.float32)
    window_rows = np.arange(folded.shape[1])
    for one in range(_CANDIDATES):
        took[one, (window_rows + row[one]) % ROWS] = folded[lag[one]]  # pattern row i lies at window row i - row
    soft = took.reshape(_CANDIDATES, -1) @ template.symbols
    norm = places.norm[lag]
    pilot = soft[:, SYMBOLS]
    known, known_p, known_word, known_place = -math.inf, math.inf, 0, 0
    if expected:
        of_known = (pilot[:, None] + soft[:, :SYMBOLS] @ signs_of(np.array(expected)).T) / norm[:, None]
        known_place, which_word = divmod(int(of_known.argmax()), len(expected))
        known, known_word = float(of_known[known_place, which_word]), expected[which_word]
        known_p = _LOG_PLACES + math.log(2 * len(expected)) - max(known, 0.0) ** 2 / 2
    tried = _LOG_PLACES + _LOG_WORDS + (math.log(2) if expected else 0.0)
    worth = -math.inf if known_p <= INTERESTING else math.sqrt(2 * (tried - INTERESTING))
    words, scores, seconds = _read(soft[:, :SYMBOLS], pilot, norm, worth)
    top = int(scores.argmax())
    score, word = float(scores[top]), int(words[top])
    log_p = tried - max(score, 0.0) ** 2 / 2
    # as a Gaussian shifted by ``score``, the words' log likelihoods differ by its product with the scores' difference
    payload = word if score * (score - float(seconds[top])) >= SURE else None
    if known_p < log_p:
        payload = payload if (known_place, known_word) == (top, word) else None
        top, score, log_p, word = known_place, known, known_p, known_word
    which, first = divmod(int(lag[top]), STEPS_OF_A_ROW)
    return Found(score, min(0.0, log_p), HYPOTHESES[which], first, int(row[top]), word, payload)


def _read(symbols: Floats, pilot: Floats, norm: Floats, worth: float) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """The best word of each candidate, its score and the second's.

    No word's score is more than if all its signs were right. Those that can't be ``worth`` so much that way, or can't
    be the best of all, are not read, but for one.
    """
    bound = (pilot + np.abs(symbols).sum(1)) / norm
    words = np.zeros(len(bound), np.int64)
    scores, seconds = np.full(len(bound), -np.inf, np.float32), np.full(len(bound), -np.inf, np.float32)
    order = np.argsort(-bound)
    order = order[: max(1, int((bound >= worth).sum()))]
    for start in range(0, len(order), AT_ONCE):
        these = order[start : start + AT_ONCE]
        if bound[these[0]] <= scores.max():
            break
        words[these], agreement, second = nearest(symbols[these])
        scores[these] = (pilot[these] + agreement) / norm[these]
        seconds[these] = (pilot[these] + second) / norm[these]
    return words, scores, seconds


def blind_log_p(score: float) -> float:
    """Natural logarithm of the p-value of a window's score if no payload was expected."""
    return min(0.0, _LOG_PLACES + _LOG_WORDS - max(score, 0.0) ** 2 / 2)


def steps_needed(rows: int) -> int:
    """Steps of sound that :func:`search` needs for so many rows."""
    return math.ceil((rows * STEPS_OF_A_ROW) / min(SPEEDS)) + STEPS_OF_A_ROW + 1


@functools.lru_cache(maxsize=8)
def _places(rows: int) -> npt.NDArray[np.int64]:
    """Where the rows' middles are in contrasts, by step and scale: int ``[hypotheses * lags, rows]``."""
    starts = np.arange(STEPS_OF_A_ROW)[None, :, None]
    middles = np.arange(rows)[None, None, :] * STEPS_OF_A_ROW
    speeds = np.array([hypothesis.speed for hypothesis in HYPOTHESES])[:, None, None]
    scales = np.array([hypothesis.scale for hypothesis in HYPOTHESES])[:, None, None]
    steps = np.rint(starts + middles / speeds).astype(np.int64)
    return (steps * len(SCALES) + scales).reshape(-1, rows)


@functools.cache
def _pilot_classes() -> tuple[Floats, Floats]:
    """Bands whose pilot lies in the same rows are one class: ``[BANDS, classes]``, 1 or 0.

    And which of the classes' tiles are the pilot's, by the row that comes first: ``[ROWS * classes, ROWS]``, 1 or 0.
    """
    rows, classes = np.unique(layout() == PILOT, axis=1, return_inverse=True)
    return np.eye(rows.shape[1], dtype=np.float32)[classes], _at_every_row(rows.astype(np.float32))


def _at_every_row(tiles: Floats) -> Floats:
    """Tiles ``[ROWS, n]`` as a window sees them that begins with any of the rows: ``[ROWS * n, ROWS]``."""
    row = (np.arange(ROWS)[:, None] + np.arange(ROWS)) % ROWS  # [window row, first row]
    return np.ascontiguousarray(np.moveaxis(tiles[row], 1, 2)).reshape(-1, ROWS)
