"""A text beside what a transcriber heard of it: errors, skips and loops, and rates with their intervals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

MOST_REPEATED = 2

_REACH = 20
"""How many words back or forth a loop may repeat."""
_DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Compared:
    """A text beside what was heard, in words: errors, all of the text, longest skip and loop, loss at the end."""

    errors: int
    words: int
    skipped: int
    looped: int
    lost_end: int


@lru_cache(maxsize=1)
def _normalizer() -> Any:
    from whisper_normalizer.english import EnglishTextNormalizer

    return EnglishTextNormalizer()


@lru_cache(maxsize=4096)
def compare(text: str, heard: str) -> Compared:
    """Align what was heard with the text, both normalised as Whisper's authors do."""
    import jiwer

    reference, hypothesis = _normalizer()(text).split(), _normalizer()(heard).split()
    if not reference:
        return Compared(len(hypothesis), 0, 0, 0, 0)
    found = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    skipped = lost_end = 0
    strange = np.zeros(len(hypothesis), bool)  # words heard that are not the text's
    for chunk in found.alignments[0]:
        if chunk.type == "delete":
            count = chunk.ref_end_idx - chunk.ref_start_idx
            if chunk.ref_end_idx == len(reference):
                lost_end = count
            else:
                skipped = max(skipped, count)
        elif chunk.type != "equal":
            strange[chunk.hyp_start_idx : chunk.hyp_end_idx] = True
    errors = found.substitutions + found.deletions + found.insertions
    return Compared(errors, len(reference), skipped, _longest_loop(hypothesis, strange), lost_end)


def _longest_loop(words: Sequence[str], strange: npt.NDArray[np.bool_]) -> int:
    """Words of the longest stretch that is all strange and repeats others near it; 0 if that is no loop yet."""
    longest = 0
    for start in range(len(words)):
        end = start + max(MOST_REPEATED, longest) + 1
        while end <= len(words) and strange[start:end].all() and _repeats(words, start, end):
            longest, end = end - start, end + 1
    return longest


def _repeats(words: Sequence[str], start: int, end: int) -> bool:
    """Whether ``words[start:end]`` stands a second time a few words before or after."""
    run = words[start:end]
    before = (start - lag for lag in range(1, min(_REACH, start) + 1))
    after = (start + lag for lag in range(1, _REACH + 1))
    return any(words[place : place + len(run)] == run for place in (*before, *after))


def error_rate(counts: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Word error rate of pairs (errors, words), and its 95 % bootstrap interval over texts, all in percent."""
    table = np.asarray(counts, np.float64).reshape(-1, 2)
    if not table[:, 1].sum():
        raise ValueError("no words")
    rates = _resampled(table)
    low, high = np.percentile(rates, (2.5, 97.5))
    return float(100 * table[:, 0].sum() / table[:, 1].sum()), float(100 * low), float(100 * high)


def error_rate_difference(
    ours: Sequence[tuple[int, int]], theirs: Sequence[tuple[int, int]]
) -> tuple[float, float, float]:
    """Our rate minus theirs on the same texts in the same order, with its 95 % interval, in points."""
    if len(ours) != len(theirs):
        raise ValueError("not the same texts")
    one, other = np.asarray(ours, np.float64).reshape(-1, 2), np.asarray(theirs, np.float64).reshape(-1, 2)
    difference = 100 * (one[:, 0].sum() / one[:, 1].sum() - other[:, 0].sum() / other[:, 1].sum())
    low, high = np.percentile(_resampled(one) - _resampled(other), (2.5, 97.5))
    return float(difference), float(100 * low), float(100 * high)


def _resampled(table: Doubles) -> Doubles:
    """Rates of bootstrap samples of the rows; the same rows for every table of as many rows."""
    drawn = np.random.default_rng(0).integers(0, len(table), (_DRAWS, len(table)))
    rates: Doubles = table[drawn, 0].sum(1) / np.maximum(1.0, table[drawn, 1].sum(1))
    return rates
