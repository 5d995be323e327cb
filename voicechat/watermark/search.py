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

from voicechat.watermark.code import PAYLOAD_BITS, SYMBOLS, Floats, codebook, nearest
from voicechat.watermark.features import STEPS_OF_A_ROW
from voicechat.watermark.pattern import BANDS, PILOT, ROWS, Pattern

SPEEDS = (1.0, 0.98, 0.987, 0.9935, 1.0065, 1.013, 1.02)
"""By how much faster than made the sound may run; those in between are near enough to one of them."""

SCALES = (1.0, 0.98, 1.02)
"""By how much its frequencies may have risen."""

SURE = 7.0
"""A payload is told if every other is so much less likely: the natural logarithm of about a thousand."""

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


def search(contrasts: Floats, pattern: Pattern, rows: int, expected: Sequence[int] = ()) -> Found:
    """Look at the first ``rows`` rows of ``contrasts``, float32 ``[steps, scales, BANDS]``, scales as :data:`SCALES`.

    It must have :func:`steps_needed` steps. Half of the p-value's budget goes to the ``expected`` payloads, if there
    are any: to look for a few takes a weaker mark than to look for all.
    """
    folded, weight = _fold(contrasts, rows)
    pilot = np.where(pattern.symbols == PILOT, pattern.signs, 0).astype(np.float32)
    seen = _correlate(folded, pilot) / np.sqrt(_correlate(weight, np.abs(pilot)) + 1e-6)
    best = np.argpartition(seen.reshape(-1), -_CANDIDATES)[-_CANDIDATES:]
    lag, row = np.divmod(best, ROWS)
    rolled = (np.arange(ROWS)[None, :] - row[:, None]) % ROWS  # pattern row i lies at window row i - row
    took = folded[lag[:, None], rolled]
    products = took * pattern.signs
    soft = np.stack([_by_symbol(product, pattern.symbols) for product in products])
    words, agreement, second = nearest(soft[:, :SYMBOLS])
    norm = np.sqrt((took**2).sum((1, 2)) + 1e-6)
    scores, seconds = (soft[:, SYMBOLS] + agreement) / norm, (soft[:, SYMBOLS] + second) / norm
    top = int(scores.argmax())
    score, word = float(scores[top]), int(words[top])
    shared = math.log(2) if expected else 0.0
    log_p = _LOG_PLACES + _LOG_WORDS + shared - max(score, 0.0) ** 2 / 2
    # as a Gaussian shifted by ``score``, the words' log likelihoods differ by its product with the scores' difference
    payload = word if score * (score - float(seconds[top])) >= SURE else None
    if expected:
        known = (soft[:, SYMBOLS, None] + soft[:, :SYMBOLS] @ codebook()[list(expected)].T) / norm[:, None]
        place, which_word = divmod(int(known.argmax()), len(expected))
        best_known = float(known[place, which_word])
        known_p = _LOG_PLACES + math.log(2 * len(expected)) - max(best_known, 0.0) ** 2 / 2
        if known_p < log_p:
            payload = payload if place == top and expected[which_word] == word else None
            top, score, log_p, word = place, best_known, known_p, expected[which_word]
    which, first = divmod(int(lag[top]), STEPS_OF_A_ROW)
    return Found(score, min(0.0, log_p), HYPOTHESES[which], first, int(row[top]), word, payload)


def blind_log_p(score: float) -> float:
    """Natural logarithm of the p-value of a window's score if no payload was expected."""
    return min(0.0, _LOG_PLACES + _LOG_WORDS - max(score, 0.0) ** 2 / 2)


def steps_needed(rows: int) -> int:
    """Steps of sound that :func:`search` needs for so many rows."""
    return math.ceil((rows * STEPS_OF_A_ROW) / min(SPEEDS)) + STEPS_OF_A_ROW + 1


@functools.lru_cache(maxsize=8)
def _places(rows: int) -> npt.NDArray[np.int64]:
    """Steps of the rows' middles, int ``[hypotheses, lags, rows]``."""
    starts = np.arange(STEPS_OF_A_ROW)[None, :, None]
    middles = np.arange(rows)[None, None, :] * STEPS_OF_A_ROW
    speeds = np.array([hypothesis.speed for hypothesis in HYPOTHESES])[:, None, None]
    return np.rint(starts + middles / speeds).astype(np.int64)


def _fold(contrasts: Floats, rows: int) -> tuple[Floats, Floats]:
    """Contrasts at the rows of each hypothesis and lag, those of the same row of the pattern added up, and squared.

    Float32 ``[hypotheses * lags, ROWS, BANDS]`` each.
    """
    scales = np.array([hypothesis.scale for hypothesis in HYPOTHESES])[:, None, None]
    taken = contrasts[_places(rows), scales].reshape(-1, rows, BANDS)
    whole = -(-rows // ROWS) * ROWS
    if whole > rows:
        taken = np.concatenate([taken, np.zeros((len(taken), whole - rows, BANDS), np.float32)], 1)
    folded: Floats = taken.reshape(len(taken), -1, ROWS, BANDS).sum(1)
    return folded, folded**2


def _correlate(window: Floats, pattern: Floats) -> Floats:
    """``[n, ROWS, BANDS]`` with ``[ROWS, BANDS]`` at every row that may lie first: float32 ``[n, ROWS]``."""
    product = np.conj(np.fft.rfft(window, axis=1)) * np.fft.rfft(pattern, axis=0)
    out: Floats = np.fft.irfft(product.sum(2), ROWS, axis=1).astype(np.float32)
    return out


def _by_symbol(products: Floats, symbols: npt.NDArray[np.int64]) -> Floats:
    """Sums over the tiles of each symbol, the pilot's last: float32 ``[SYMBOLS + 1]``."""
    index = np.where(symbols == PILOT, SYMBOLS, symbols)
    sums: Floats = np.bincount(index.reshape(-1), products.reshape(-1), SYMBOLS + 1).astype(np.float32)
    return sums
