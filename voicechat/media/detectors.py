"""The models that say who speaks and when a turn is over, loaded once and shared by all sessions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voicechat.contract.sound import EARS_RATE, EarsPcm
from voicechat.media.silero import Silero, SileroQueue, run_streams
from voicechat.media.smart_turn import SECONDS, SmartTurn
from voicechat.media.vad import Heard, SpeechVad, VadPolicy

SILERO_FILE = "silero_vad.onnx"
SMART_TURN_FILE = "smart-turn-v3.2-cpu.onnx"

FEW = 40
"""Up to so many calls in :data:`SPAN_S`, as of four speakers whose sound comes every 20 ms, Silero runs on the spot."""
SPAN_S = 0.2


class Detectors:
    """Smart Turn runs in one thread of its own, and Silero in another, for all that listen at once, or where a detector
    is called: both leave the interpreter to others while they compute, and one turn at a time is enough for one core.
    :meth:`close` ends the threads."""

    def __init__(self, silero: Silero, smart_turn: SmartTurn, few: int = FEW, policy: VadPolicy | None = None) -> None:
        self._silero = self.silero = silero
        self._policy = policy
        self._queue = SileroQueue(silero)
        self._smart_turn = smart_turn
        self._recent: deque[float] = deque()
        self._most = few
        self._closed = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="smart-turn")

    @classmethod
    def load(cls, folder: Path, policy: VadPolicy | None = None) -> Detectors:
        """The models in ``folder``, warm. Raises FileNotFoundError, or ValueError if a file is another model."""
        detectors = cls(Silero(folder / SILERO_FILE), SmartTurn(folder / SMART_TURN_FILE), policy=policy)
        detectors.vad()
        return detectors

    def vad(self, threshold: float = 0.5) -> SpeechVad:
        """A voice activity detector for one microphone."""
        return SpeechVad(self._silero, threshold, self._policy)

    async def heard(self, vad: SpeechVad, frames: Sequence[EarsPcm]) -> list[tuple[Heard, float | None]]:
        """What ``vad`` hears in each of ``frames``, with the probability for its :meth:`~SpeechVad.decide`.

        While many speak, Silero runs in a thread meanwhile, for other microphones too; one that is quiet is not waited
        for. Until it is over nothing else may use ``vad``. Raises RuntimeError if the detectors are closed, ValueError
        for no frame.
        """
        found = [vad.hear(frame) for frame in frames]
        known = self.at_once(vad, found)
        return await self.later(vad, found) if known is None else known

    def at_once(self, vad: SpeechVad, found: Sequence[Heard]) -> list[tuple[Heard, float | None]] | None:
        """As :meth:`heard`, of what ``vad`` has heard already; None if :meth:`later` has to be awaited for it, before
        ``vad`` is used again. Raises RuntimeError if the detectors are closed."""
        if not any(heard.taken.windows for heard in found):
            return [(heard, None) for heard in found]
        if self._closed:
            raise RuntimeError("the detectors are closed")
        if not self._few(asyncio.get_running_loop().time()):
            return None
        (probabilities,) = run_streams(self._silero, [(vad.stream, [heard.taken for heard in found])])
        return list(zip(found, probabilities, strict=True))

    async def later(self, vad: SpeechVad, found: Sequence[Heard]) -> list[tuple[Heard, float | None]]:
        """What :meth:`at_once` had no time for."""
        probabilities = await self._queue.run(vad.stream, [heard.taken for heard in found])
        return list(zip(found, probabilities, strict=True))

    def _few(self, now: float) -> bool:
        """True if few microphones are speaking: then a hand-over to the thread and back costs more than the model."""
        self._recent.append(now)
        while self._recent[0] < now - SPAN_S:
            self._recent.popleft()
        return len(self._recent) <= self._most

    async def finished(self, turn: EarsPcm) -> float:
        """Probability that ``turn`` (float32 mono 16 kHz) is complete. May be cancelled, also while it waits."""
        last = turn[-SECONDS * EARS_RATE :]
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._smart_turn.finished, last)

    def close(self) -> None:
        """End the threads; what waits for them is given up. Idempotent."""
        self._closed = True
        self._queue.close()
        self._worker.shutdown(wait=False, cancel_futures=True)
