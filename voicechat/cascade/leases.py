"""Who may use which slot: leases with bounded waiting, and quarantine until every worker has let go."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable
from dataclasses import dataclass

from voicechat.contract.errors import Overloaded

MARGIN = 1.5
"""By this factor a wait may turn out longer than it was expected to be."""
_NEW = 0.2
"""The weight of a new time in the mean of how long slots are held."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to one slot. ``generation`` is unique over all leases of a run and never 0."""

    slot: int
    generation: int


class Leases:
    """Hands out ``slots`` slots, first come first served.

    A released slot stays in quarantine until its ``may_reuse`` says True: a worker may still write one row for some
    milliseconds after an abort. Quarantined slots are polled, only while there are any, every ``poll`` seconds.
    """

    def __init__(
        self, slots: int, *, max_waiting: int, poll: float = 0.003, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._free = collections.deque(range(slots))
        self._waiting: collections.deque[asyncio.Future[int]] = collections.deque()
        self._quarantine: list[tuple[int, Callable[[], bool]]] = []
        self._max_waiting = max_waiting
        self._poll = poll
        self._clock = clock
        self._generation = 0
        self._since: dict[int, float] = {}
        self._held = 0.0
        self._poller: asyncio.Task[None] | None = None
        self.total = slots

    @property
    def free(self) -> int:
        """Slots that could be leased at once."""
        return len(self._free)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    def expected_wait(self) -> float:
        """Seconds after which whoever comes now would get a slot, by how long slots are held; 0 if it is not known.

        Those that are held now count too: when all is slower than it was, that shows in them first.
        """
        if self._free and not self._waiting:
            return 0.0
        now = self._clock()
        ages = [now - since for since in self._since.values()]
        held = max([self._held, *ages])
        left = sorted(max(held - age, held / 4) for age in ages) or [0.0]
        rounds, place = divmod(len(self._waiting), len(left))
        return left[place] + rounds * held

    async def acquire(self, wait: float, *, predict: bool = False) -> Lease:
        """A lease, after at most ``wait`` seconds; raises :class:`Overloaded` if none came, or too many wait.

        With ``predict`` at once if it is not likely that one comes in time.
        """
        if self._free and not self._waiting:
            return self._lease(self._free.popleft())
        expected = self.expected_wait()
        if len(self._waiting) >= self._max_waiting or (predict and expected * MARGIN > wait):
            raise Overloaded(
                "The server is overloaded: too many replies are in the making. Try again in a moment.",
                retry_after=expected,
            )
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(wait):
                return self._lease(await future)
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled():
                self._give(future.result())  # granted in the very moment in which the caller gave up
            else:
                self._forget(future)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"The server is overloaded: no place became free within {wait:g} s. Try again in a moment.",
                    retry_after=self.expected_wait(),
                ) from None
            raise

    def release(self, lease: Lease, may_reuse: Callable[[], bool]) -> None:
        """End a lease; the slot is used again once ``may_reuse()`` is True."""
        if (since := self._since.pop(lease.slot, None)) is not None:
            held = self._clock() - since
            self._held = held if not self._held else self._held + _NEW * (held - self._held)
        if may_reuse():
            self._give(lease.slot)
            return
        self._quarantine.append((lease.slot, may_reuse))
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._watch(), name="lease-quarantine")

    async def _watch(self) -> None:
        while self._quarantine:
            await asyncio.sleep(self._poll)
            held = []
            for slot, may_reuse in self._quarantine:
                if may_reuse():
                    self._give(slot)
                else:
                    held.append((slot, may_reuse))
            self._quarantine = held

    def _lease(self, slot: int) -> Lease:
        self._generation += 1
        self._since[slot] = self._clock()
        return Lease(slot, self._generation)

    def _give(self, slot: int) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(slot)
                return
        self._free.append(slot)

    def _forget(self, future: asyncio.Future[int]) -> None:
        self._waiting = collections.deque(other for other in self._waiting if other is not future)
