"""An asyncio event loop whose clock does not run: whenever nothing is left to do, it jumps to the next timer.

What sleeps for an hour in it is over at once, and happens in the same order every time. Threads and sockets have no
place in it: for them the clock would have to run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jump(selectors.SelectSelector):
    """Does not wait, but moves the clock by as much."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing is left that could happen, but somebody waits")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. Its time begins at 0."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Seconds of the simulated clock."""
        return self._jump.now


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
