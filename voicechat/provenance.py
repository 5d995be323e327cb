"""Where a file's sound comes from: its marks and signed metadata, looked for in this process or in one beside it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from voicechat.contract.provenance import CannotCheck, MarkReport, MarkSpan, Provenance
from voicechat.contract.sound import Pcm
from voicechat.media.sound_file import read_sound
from voicechat.watermark.detect import MIN_S, Detector
from voicechat.watermark.keys import Key
from voicechat.watermark.report import Report

log = logging.getLogger(__name__)

RATE = 16_000
"""Sample rate in Hz at which marks are looked for."""
_NICENESS = 10


def detect_file(
    path: Path, keys: Sequence[Key], *, expected: Sequence[int] = (), foreign: bool = False, max_s: float = math.inf
) -> MarkReport:
    """Look for marks made with ``keys`` in a file that FFmpeg reads, however long it is, in bounded memory.

    ``expected``: see :class:`voicechat.watermark.detect.Detector`; ``foreign``, ``max_s``: see
    :func:`voicechat.media.sound_file.read_sound`. Raises :class:`CannotCheck`, and OSError for a file that can't be
    opened.
    """
    with path.open("rb"):  # FFmpeg would have no better word for a file that is not there
        pass
    detector = Detector(keys, RATE, expected)
    # the products are small: more threads would be busy waiting for each other, and for whatever else needs their cores
    with threadpool_limits(1, "blas"):
        for pcm in _seconds(read_sound(path, foreign=foreign, rate=RATE, max_s=max_s)):
            detector.feed(pcm)
        return _checked(detector.finish())


def _seconds(pieces: Iterator[Pcm]) -> Iterator[Pcm]:
    """The same in pieces of a second, which cost less to look into than many short ones."""
    held: list[Pcm] = []
    for pcm in pieces:
        held.append(pcm)
        if sum(map(len, held)) >= RATE:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _checked(report: Report) -> MarkReport:
    """A report as the contract has it. Raises :class:`CannotCheck` for a sound in which nothing could be found."""
    seconds = report.duration_s
    match report.outcome:
        case "silent":
            raise CannotCheck("The sound is silence: there is nothing in it that could hold a mark.", "silent")
        case "too_short" if not seconds:
            raise CannotCheck("The file holds no sound.", "no_audio")
        case "too_short":
            message = f"The sound lasts {seconds:.2f} s, which is too short: at least {MIN_S:g} s are needed."
            raise CannotCheck(message, "too_short")
    return MarkReport(
        detected=report.marked,
        duration_s=seconds,
        p_value=report.p_value,
        spans=tuple(MarkSpan(**dataclasses.asdict(span)) for span in report.spans),
        scores=report.scores,
    )


def check_file(
    path: Path,
    keys: Sequence[Key],
    trust_anchors: str | None = None,
    max_s: float = math.inf,
    expected: Sequence[int] = (),
) -> Provenance:
    """Marks and signed metadata of a stranger's file, of at most ``max_s`` seconds. Raises :class:`CannotCheck`."""
    from voicechat.watermark.manifest import read_credential

    mark = detect_file(path, keys, expected=expected, foreign=True, max_s=max_s)
    return Provenance(mark=mark, credential=read_credential(path, trust_anchors))


class CheckFailed(Exception):
    """The process that looked into a file ended before it had an answer."""


class Checker:
    """Checks files in a process of its own, one at a time, at low priority: neither replies nor the event loop wait.

    The process is started by the first check. A check that is cancelled, or brings the process down, costs the process;
    the next one has a new one. :meth:`close` ends it.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        trust_anchors: str | None = None,
        max_s: float = math.inf,
        expected: Sequence[int] = (),
    ) -> None:
        """``max_s``: seconds of sound in a file; one that holds more keeps the others waiting no longer than that.

        ``expected``: see :func:`detect_file`.
        """
        self._given = (tuple(key.secret for key in keys), trust_anchors, max_s, tuple(expected))
        self._turn = asyncio.Lock()
        self._worker: tuple[SpawnProcess, Connection] | None = None
        self._closed = 0  # how often

    async def check(self, path: Path) -> Provenance:
        """Raises :class:`CannotCheck` and :class:`CheckFailed`; may be cancelled."""
        await self._turn.acquire()
        # a thread outlives the task that is cancelled, so its end makes room for the next: two would mix their answers
        asking = asyncio.get_running_loop().run_in_executor(None, self._ask, path, self._closed)
        asking.add_done_callback(self._asked)
        try:
            await asyncio.wait({asking})
        finally:
            if not asking.done():
                self.close()
        answer = asking.result()
        if isinstance(answer, CannotCheck):
            raise answer
        return answer

    def _asked(self, asking: asyncio.Future[Provenance | CannotCheck]) -> None:
        self._turn.release()
        asking.exception()  # nobody asks for that of a check that was cancelled

    def close(self) -> None:
        """End the process, whatever it does, also one that is just starting. Idempotent."""
        self._closed += 1
        worker, self._worker = self._worker, None
        if worker is not None:
            process, _ = worker
            process.kill()

    def _ask(self, path: Path, closed: int) -> Provenance | CannotCheck:
        """In a thread, one at a time: hand a file over and wait. The thread ends with the process at the latest."""
        worker = self._worker
        if worker is None or not worker[0].is_alive():
            worker = self._worker = self._start()
        process, connection = worker
        if self._closed != closed:  # the process that close() ended was not this one, which it did not see yet
            process.kill()
        try:
            connection.send(os.fspath(path))
            answer: Provenance | CannotCheck = connection.recv()
        except (EOFError, OSError):
            process.join(1)
            if self._worker is worker:
                self._worker = None
            raise CheckFailed(f"the process that checks files ended (exit code {process.exitcode})") from None
        return answer

    def _start(self) -> tuple[SpawnProcess, Connection]:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_work, args=(theirs, *self._given), name="voicechat-checker", daemon=True)
        process.start()
        theirs.close()
        return process, ours


def _work(
    connection: Connection,
    secrets: Sequence[bytes],
    trust_anchors: str | None,
    max_s: float,
    expected: Sequence[int],
) -> None:
    """Body of the process: ends when the server closes its side, or is gone."""
    os.nice(_NICENESS)
    keys = [Key(secret) for secret in secrets]
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            path = Path(connection.recv())
            try:
                connection.send(check_file(path, keys, trust_anchors, max_s, expected))
            except CannotCheck as reason:
                connection.send(reason)
