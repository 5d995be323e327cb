"""Sounds on their way to the ears, and sounds and images on their way to the Thinker: a bay of the pool for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voicechat.cascade.leases import Lease, Leases
from voicechat.cascade.stage import StageLike
from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, StageFailed
from voicechat.contract.hearing import HearingOptions, Transcription
from voicechat.contract.messages import Abort, Attach, Message, Transcribe
from voicechat.contract.pool import Pool
from voicechat.contract.requests import AudioPart, ImagePart
from voicechat.contract.sound import EARS_RATE, EarsPcm

BACKGROUND_WAIT_S = 600.0


@dataclass(slots=True)
class _Pending:
    outcome: asyncio.Future[Transcription]
    lease: Lease
    stage: StageLike


class Hearing:
    """Sends sounds to the stage that has the ears, and attachments to the Thinker.

    ``numbers`` gives each a number that no response has.
    """

    def __init__(
        self,
        pool: Pool,
        ears: StageLike,
        thinker: StageLike,
        numbers: Callable[[], int],
        *,
        acquire_timeout: float,
        max_waiting: int,
    ) -> None:
        self.bays = Leases(pool.spec.bays, max_waiting=max_waiting)
        self._pool = pool
        self._ears = ears
        self._thinker = thinker
        self._numbers = numbers
        self._acquire_timeout = acquire_timeout
        self._pending: dict[int, _Pending] = {}
        self._background = asyncio.Semaphore(max(1, pool.spec.bays // 2))

    @property
    def pending(self) -> int:
        """Sounds and images that were not answered yet; their bays are held, also if nobody waits any more."""
        return len(self._pending)

    async def hear(self, pcm: EarsPcm, options: HearingOptions) -> Transcription:
        """What float32 mono sound at 16 kHz says, shape ``[samples]``. May be cancelled. Raises :class:`CascadeError`.

        What is heard in the background waits as long as it must, and never has more than half of the bays.
        """
        self._check_sound(pcm)
        number = self._numbers()

        def message(bay: int, size: int) -> Message:
            return Transcribe(number, bay, len(pcm), options)

        if not options.background:
            return await self._send(self._ears, number, pcm, message)
        async with self._background:
            return await self._send(self._ears, number, pcm, message, patience=BACKGROUND_WAIT_S)

    async def attach(self, part: AudioPart | ImagePart) -> int:
        """Bring a sound or an image to the Thinker: the number by which a turn may name it, once.

        What is not used is to be taken back by :class:`~voicechat.contract.messages.Abort`. May be cancelled. Raises
        :class:`CascadeError`.
        """
        number = self._numbers()
        if isinstance(part, AudioPart):
            self._check_sound(part.pcm)
            await self._send(self._thinker, number, part.pcm, lambda bay, size: Attach(number, "sound", bay, size))
            return number
        data = np.frombuffer(part.data, np.uint8)
        if not len(data):
            raise InvalidRequest("The image is empty.", param="messages")
        if len(data) > self._pool.bay_bytes:
            limit = self._pool.bay_bytes / 1e6
            raise InvalidRequest(f"The image is too large: at most {limit:.1f} MB are seen.", param="messages")
        await self._send(self._thinker, number, data, lambda bay, size: Attach(number, "image", bay, size))
        return number

    def _check_sound(self, pcm: EarsPcm) -> None:
        most = self._pool.spec.bay_samples
        if pcm.ndim != 1 or not len(pcm):
            raise InvalidRequest("The sound is empty.", param="messages")
        if len(pcm) > most:
            limit = most / EARS_RATE
            raise InvalidRequest(f"The sound is too long: at most {limit:g} s are heard at once.", param="messages")

    async def _send(
        self,
        stage: StageLike,
        number: int,
        data: npt.NDArray[np.generic],
        message: Callable[[int, int], Message],
        patience: float | None = None,
    ) -> Transcription:
        """Put ``data`` into a bay, send the message that names the bay and its bytes, and wait for the answer."""
        if not stage.up:
            raise NotReady(f"The server is not ready: the {stage.name} stage is not up. Try again in a moment.")
        lease = await self.bays.acquire(self._acquire_timeout if patience is None else patience)
        if not self._is_up(stage):  # it died while this waited
            self.bays.release(lease, lambda: True)
            raise StageFailed(stage.name, f"The {stage.name} stage is down. Please try again in a moment.")
        future: asyncio.Future[Transcription] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(future, lease, stage)
        stage.send(message(lease.slot, self._pool.write_bay(lease.slot, data)))
        try:
            return await future
        except asyncio.CancelledError:
            stage.send(Abort(number))
            raise

    @staticmethod
    def _is_up(stage: StageLike) -> bool:
        return stage.up

    def settle(self, number: int, outcome: Transcription | CascadeError) -> bool:
        """Take what became of sound or image ``number``; False if there is none of that number."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return False
        self.bays.release(pending.lease, lambda: True)
        if not pending.outcome.done():
            if isinstance(outcome, Transcription):
                pending.outcome.set_result(outcome)
            else:
                pending.outcome.set_exception(outcome)
        return True

    def fail_all(self, stage: StageLike, error: Callable[[], CascadeError]) -> None:
        """A stage died: nothing that is pending there will come."""
        for number in [number for number, pending in self._pending.items() if pending.stage is stage]:
            self.settle(number, error())
