"""Sounds on their way to the ears: a bay of the pool for each, and the text that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from voicechat.cascade.leases import Lease, Leases
from voicechat.cascade.stage import StageLike
from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, StageFailed
from voicechat.contract.messages import Abort, Transcribe
from voicechat.contract.pool import Pool
from voicechat.contract.sound import EARS_RATE, EarsPcm


class Hearing:
    """Sends sounds to the stage that has the ears. ``numbers`` gives each a number that no response has."""

    def __init__(
        self, pool: Pool, stage: StageLike, numbers: Callable[[], int], *, acquire_timeout: float, max_waiting: int
    ) -> None:
        self.bays = Leases(pool.spec.bays, max_waiting=max_waiting)
        self._pool = pool
        self.stage = stage
        self._numbers = numbers
        self._acquire_timeout = acquire_timeout
        self._pending: dict[int, tuple[asyncio.Future[str], Lease]] = {}

    @property
    def pending(self) -> int:
        """Sounds whose text has not come yet; their bays are held, also if nobody waits for the text any more."""
        return len(self._pending)

    async def transcribe(self, pcm: EarsPcm) -> str:
        """Text of float32 mono sound at 16 kHz, shape ``[samples]``. May be cancelled. Raises :class:`CascadeError`."""
        most = self._pool.spec.bay_samples
        if pcm.ndim != 1 or not len(pcm):
            raise InvalidRequest("The sound is empty.", param="messages")
        if len(pcm) > most:
            limit = most / EARS_RATE
            raise InvalidRequest(f"The sound is too long: at most {limit:g} s are heard at once.", param="messages")
        if not self.stage.up:
            raise NotReady(f"The server is not ready: the {self.stage.name} stage is not up. Try again in a moment.")
        lease = await self.bays.acquire(self._acquire_timeout)
        if not self._is_up():  # it died while this sound waited
            self.bays.release(lease, lambda: True)
            name = self.stage.name
            raise StageFailed(name, f"The {name} stage is down. Please try again in a moment.")
        number = self._numbers()
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[number] = (future, lease)
        self._pool.bays[lease.slot, : len(pcm)] = pcm
        self.stage.send(Transcribe(number, lease.slot, len(pcm)))
        try:
            return await future
        except asyncio.CancelledError:
            self.stage.send(Abort(number))
            raise

    def _is_up(self) -> bool:
        return self.stage.up

    def settle(self, number: int, outcome: str | CascadeError) -> bool:
        """Take what became of sound ``number``; False if there is no such sound."""
        future, lease = self._pending.pop(number, (None, None))
        if future is None or lease is None:
            return False
        self.bays.release(lease, lambda: True)
        if not future.done():
            if isinstance(outcome, str):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
        return True

    def fail_all(self, error: Callable[[], CascadeError]) -> None:
        """The stage died: nothing that is pending will come."""
        for number in list(self._pending):
            self.settle(number, error())
