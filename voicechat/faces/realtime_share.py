"""The event loop's time, shared between many sessions and everything else that runs on it."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from aiohttp import web

BUDGET_S = 0.002
"""Seconds of one turn of the event loop that sessions may take together."""


class LoopShare:
    """Lets many tasks with a little work each share one event loop with those that may not be late.

    The sound of many microphones comes at the same moment, and the loop would deal with all of it before it looks at
    anything else. A task asks for its :meth:`turn` before each piece of work. It goes on at once while nobody waits and
    the first piece of work in this turn of the loop was begun less than ``budget`` seconds ago; else it waits, in
    order, for one of the next turns of the loop. Timers and other tasks thus come after the budget and one piece of
    work at most. At least one piece of work is done in each turn of the loop. For one event loop.
    """

    def __init__(self, budget: float = BUDGET_S) -> None:
        self._budget = budget
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._again: list[asyncio.Future[None]] = []  # they were called, but too many: first of all the next time
        self._begun: float | None = None
        self._pieces = 0
        self._fit = 1  # pieces of work that a turn of the loop has time for, as the last one has shown
        self._renewing = False

    async def turn(self) -> None:
        """Wait until there is time for another piece of work."""
        if self._waiting or self._again or not self._has_time():
            loop, queue = asyncio.get_running_loop(), self._waiting.append
            while True:
                waiter = loop.create_future()
                queue(waiter)
                await waiter
                if self._has_time():
                    break
                queue = self._again.append
        self._begin()

    def take(self) -> bool:
        """As :meth:`turn`, for who can't wait: False if there is no time now."""
        if self._waiting or self._again or not self._has_time():
            return False
        self._begin()
        return True

    def _begin(self) -> None:
        self._pieces += 1
        if self._begun is None:
            self._begun = time.perf_counter()
            if not self._renewing:
                self._renewing = True
                asyncio.get_running_loop().call_soon(self._renew)

    def _has_time(self) -> bool:
        return self._begun is None or time.perf_counter() - self._begun < self._budget

    def _renew(self) -> None:
        """Another turn of the loop: call as many as fit."""
        if self._begun is not None:
            took = time.perf_counter() - self._begun
            self._fit = max(1, min(2 * self._pieces, int(self._pieces * self._budget / max(took, 1e-6))))
        self._begun, self._pieces = None, 0
        self._waiting.extendleft(reversed(self._again))
        self._again.clear()
        left = self._fit
        while left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # nobody waits for it any more
                waiter.set_result(None)
                left -= 1
        self._renewing = left == 0
        if self._renewing:  # after those that were called
            asyncio.get_running_loop().call_soon(self._renew)


SHARE = web.AppKey("loop_share", LoopShare)


def loop_share(app: web.Application) -> LoopShare:
    """The application's, for all realtime faces; made when it is first asked for."""
    if SHARE not in app:
        app[SHARE] = LoopShare()
    return app[SHARE]
