"""How late the event loop is: the measure that tells whether something blocks it."""

from __future__ import annotations

import asyncio
import collections
import itertools
import time

PERIOD = 0.02
"""Seconds between two looks."""
KEPT = 3000
"""Looks that are kept: the last minute."""


class LoopLag:
    """Sleeps for a known time again and again, and notes how much later than due it wakes."""

    def __init__(self) -> None:
        self._lags: collections.deque[float] = collections.deque(maxlen=KEPT)

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.perf_counter() + PERIOD
            await asyncio.sleep(PERIOD)
            self._lags.append(max(0.0, time.perf_counter() - due))

    def percentile_ms(self, percent: float, seconds: float = PERIOD * KEPT) -> float:
        """Lag in milliseconds that ``percent`` of the looks of the last ``seconds`` did not exceed, at most those that
        are kept; 0 before the first look."""
        first = max(0, len(self._lags) - max(1, round(seconds / PERIOD)))
        lags = sorted(itertools.islice(self._lags, first, None))
        return 1000.0 * lags[min(len(lags) - 1, int(len(lags) * percent / 100))] if lags else 0.0
