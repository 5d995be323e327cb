"""Silero VAD: how likely it is that somebody speaks, for every 32 ms of sound.

The model is recurrent, so every microphone has a :class:`SileroStream` of its own over one shared :class:`Silero`. A
window takes about 0.1 ms of one core, and half of that where several microphones' windows are run as a batch, which
:class:`SileroQueue` does in a thread. A batch gives each row to the last bit what it gives alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import EARS_RATE, EarsPcm
from voicechat.media.onnx import open_model

WINDOW_SAMPLES = 512
"""32 ms at 16 kHz."""

_CONTEXT_SAMPLES = 64
_STATE_SHAPE = (2, 1, 128)
_RATE = np.array(EARS_RATE, dtype=np.int64)
_State = npt.NDArray[np.float32]


class Windows(NamedTuple):
    """What a stream wants to be run, in order; ``fresh``: nothing that was before counts."""

    fresh: bool
    windows: list[EarsPcm]


class Silero:
    """The loaded model. ``path`` is its ONNX file. Raises ValueError if it is another model."""

    def __init__(self, path: Path) -> None:
        self._model = open_model(path, {"input", "state", "sr"})

    def run(self, sound: EarsPcm, state: _State) -> tuple[npt.NDArray[np.float32], _State]:
        """Probabilities for windows with the samples before them (``[batch, 576]`` to ``[batch]``), and the next state.

        States have the shape ``[2, batch, 128]``.
        """
        probability, after = self._model.run(None, {"input": sound, "state": state, "sr": _RATE})
        return probability[:, 0], after


class SileroStream:
    """One microphone: takes sound of any length and holds the recurrent state."""

    def __init__(self, silero: Silero) -> None:
        self._silero = silero
        self.state: _State = np.zeros(_STATE_SHAPE, np.float32)
        self.reset()

    def reset(self) -> None:
        """Forget everything that was heard."""
        self._fresh = True
        self._sound: EarsPcm = np.zeros(_CONTEXT_SAMPLES, np.float32)  # the context, and what is no whole window yet

    def take(self, sound: EarsPcm) -> Windows:
        """Take more sound (float32 at 16 kHz): the windows that it completes, which have to be run, in this order."""
        self._sound = np.concatenate([self._sound, sound])
        windows = []
        while len(self._sound) >= _CONTEXT_SAMPLES + WINDOW_SAMPLES:
            windows.append(self._sound[: _CONTEXT_SAMPLES + WINDOW_SAMPLES])
            self._sound = self._sound[WINDOW_SAMPLES:]
        fresh = self._fresh and bool(windows)
        self._fresh = self._fresh and not fresh
        return Windows(fresh, windows)

    def run(self, taken: Windows) -> float | None:
        """Probability of speech in the last of these windows, None if there is none."""
        return run_streams(self._silero, [(self, [taken])])[0][0]

    def push(self, sound: EarsPcm) -> float | None:
        """Take more sound (float32 at 16 kHz): the probability of speech in the newest window that it completes."""
        return self.run(self.take(sound))


def run_streams(silero: Silero, jobs: Sequence[tuple[SileroStream, Sequence[Windows]]]) -> list[list[float | None]]:
    """Run what different streams have taken, the n-th windows of all at once; as :meth:`SileroStream.run` for each."""
    found: list[list[float | None]] = [[None] * len(taken) for _, taken in jobs]
    steps = [
        [
            (place, one.fresh and not index, window)
            for place, one in enumerate(taken)
            for index, window in enumerate(one.windows)
        ]
        for _, taken in jobs
    ]
    for number in range(max(map(len, steps), default=0)):
        rows = [(job, *steps[job][number]) for job in range(len(jobs)) if number < len(steps[job])]
        for job, _, fresh, _ in rows:
            if fresh:
                jobs[job][0].state = np.zeros(_STATE_SHAPE, np.float32)
        sound = np.stack([window for *_, window in rows])
        state = np.concatenate([jobs[job][0].state for job, *_ in rows], axis=1)
        probabilities, after = silero.run(sound, state)
        for index, (job, place, *_) in enumerate(rows):
            jobs[job][0].state = after[:, index : index + 1]
            found[job][place] = float(probabilities[index])
    return found


class _Job(NamedTuple):
    stream: SileroStream
    taken: Sequence[Windows]
    done: asyncio.Future[list[float | None]]


class SileroQueue:
    """Runs streams in one thread: all that wait when it becomes free, at once. For one event loop at a time."""

    def __init__(self, silero: Silero) -> None:
        self._silero = silero
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="silero")
        self._waiting: list[_Job] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the batch that is being run, or about to be

    async def run(self, stream: SileroStream, taken: Sequence[Windows]) -> list[float | None]:
        """Probability of speech in the last window of each part of ``taken``, None where there is none.

        A stream must not be used elsewhere before this is over. Raises RuntimeError if the queue is closed.
        """
        loop = asyncio.get_running_loop()
        job = _Job(stream, taken, loop.create_future())
        if self._loop is not loop:
            self._loop, self._waiting = loop, []
            loop.call_soon(self._begin, loop)  # those that come in this turn of the loop are run together
        self._waiting.append(job)
        return await job.done

    def close(self) -> None:
        """End the thread; what waits for it fails. Idempotent."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting, []
        try:
            work = self._thread.submit(run_streams, self._silero, [(job.stream, job.taken) for job in batch])
        except RuntimeError as error:  # closed
            self._fail(batch, error)
            self._loop = None
        else:
            work.add_done_callback(
                lambda done: None if loop.is_closed() else loop.call_soon_threadsafe(self._end, loop, batch, done)
            )

    def _end(self, loop: asyncio.AbstractEventLoop, batch: list[_Job], work: Future[list[list[float | None]]]) -> None:
        if work.cancelled():
            self._fail(batch, RuntimeError("the detectors are closed"))
        elif (error := work.exception()) is not None:
            self._fail(batch, error)
        else:
            for job, found in zip(batch, work.result(), strict=True):
                if not job.done.done():
                    job.done.set_result(found)
        if self._loop is loop:
            if self._waiting:
                self._begin(loop)
            else:
                self._loop = None

    @staticmethod
    def _fail(batch: list[_Job], error: BaseException) -> None:
        for job in batch:
            if not job.done.done():
                job.done.set_exception(error)
