"""The measures themselves, as pure functions of what a client saw. Times are seconds of one clock of the client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

GOOD_UNDERRUN_S = 0.1
"""A stream is good if its player never stood still for longer than this at once."""

AUDIBLE = 10 ** (-46 / 20)
"""Samples of at least this size (full scale = 1) are not silence."""

_VOICED_FLOOR = 10 ** (-55 / 20)
_BELOW_LOUDEST = 10 ** (-30 / 20)
_WINDOW_S = 0.01


@dataclass(frozen=True, slots=True)
class Summary:
    """What is told of many values of one figure."""

    p50: float
    p95: float
    mean: float
    least: float
    most: float
    count: int


def percentile(values: Sequence[float], share: float) -> float:
    """The value under which ``share`` (0 to 1) of ``values`` lie, interpolated. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values")
    return float(np.quantile(values, share))


def summarize(values: Iterable[float | None]) -> Summary | None:
    """The summary of all values that were taken; None if there is none."""
    taken = [value for value in values if value is not None]
    if not taken:
        return None
    return Summary(
        p50=percentile(taken, 0.5),
        p95=percentile(taken, 0.95),
        mean=math.fsum(taken) / len(taken),
        least=min(taken),
        most=max(taken),
        count=len(taken),
    )


@dataclass(frozen=True, slots=True)
class Continuity:
    """How a stream plays: the longest single underrun, all of them together, and how many there were."""

    worst_s: float
    total_s: float
    underruns: int

    @property
    def good(self) -> bool:
        """True if nobody would call it broken."""
        return self.worst_s <= GOOD_UNDERRUN_S


def play(chunks: Sequence[tuple[float, float]]) -> Continuity:
    """Simulate a player of ``chunks``, pairs of (arrival, seconds of sound) in order of arrival.

    It starts with the first chunk, stands still whenever it has played all that has arrived, and goes on with the next
    one. Raises ValueError if arrivals go back in time or a chunk is shorter than nothing.
    """
    worst = total = 0.0
    underruns = 0
    dry_at: float | None = None  # when the player has played everything
    last = -math.inf
    for arrival, seconds in chunks:
        if arrival < last or seconds < 0:
            raise ValueError(f"not a chunk that can follow: {(arrival, seconds)}")
        last = arrival
        if not seconds:
            continue
        if dry_at is None:
            dry_at = arrival
        elif arrival > dry_at:
            gap = arrival - dry_at
            worst, total, underruns = max(worst, gap), total + gap, underruns + 1
            dry_at = arrival
        dry_at += seconds
    return Continuity(worst, total, underruns)


def first_audible(samples: Floats) -> int | None:
    """Index of the first sample of ``samples`` (float32 ``[n]``, full scale = 1) that is not silence."""
    loud = np.flatnonzero(np.abs(samples) >= AUDIBLE)
    return int(loud[0]) if loud.size else None


def last_voiced(samples: Floats, rate: int) -> int | None:
    """Index of the last sample of speech in ``samples`` (float32 ``[n]`` at ``rate`` Hz); None if all is silence.

    Windows of 10 ms are speech if they are louder than -55 dBFS and not more than 30 dB below the loudest; of the last
    such window it is the last sample that is above that bound too.
    """
    window = max(1, int(rate * _WINDOW_S))
    count = -(-len(samples) // window)
    if not count:
        return None
    padded = np.zeros(count * window, np.float64)
    padded[: len(samples)] = samples
    levels = np.sqrt(np.mean(np.square(padded.reshape(count, window)), axis=1))
    bound = max(_VOICED_FLOOR, float(levels.max()) * _BELOW_LOUDEST)
    voiced = np.flatnonzero(levels >= bound)
    if not voiced.size:
        return None
    start = int(voiced[-1]) * window
    return start + int(np.flatnonzero(np.abs(padded[start : start + window]) >= bound)[-1])


def real_time_factor(wall_s: float, audio_s: float) -> float | None:
    """Seconds from request to last sound per second of sound; None if there was no sound."""
    return wall_s / audio_s if audio_s > 0 else None
