"""Whether the processes of a stage work, wait for a processor, or do neither: what Linux tells of them in ``/proc``.

That a stage owes an answer does not show that it hangs: on a busy machine it may not have had a processor since. What
shows it is that it neither ran nor wanted to (``schedstat``: nanoseconds on a processor, and ready for one; see the
kernel's Documentation/scheduler/sched-stats.rst), or that it is stopped (``stat``: state T; proc_pid_stat(5)).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_PROC = Path("/proc")
_STOPPED = "Tt"
_AT_WORK = "RD"
"""On a processor or ready for one; and waiting for a disk."""
_GONE = "ZX"
LITTLE = 0.05
"""The part of the time for which a process may run, or be ready, and still be doing nothing but look around."""


class Vitals:
    """Of one process group. Nothing is found where there is no ``/proc``, and then nothing is ever known against it."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._processes = [group]
        self._times: tuple[int, int] | None = None

    def find(self) -> None:
        """Look for the processes of the group; takes some milliseconds."""
        found = []
        for path in _PROC.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = _stat(path)
                if int(fields[2]) == self._group and fields[0] not in _GONE:
                    found.append(int(path.parent.name))
        self._processes = found or [self._group]

    @property
    def stopped(self) -> bool:
        """Whether one of them is stopped by a signal, or by a debugger."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                if _stat(_PROC / str(process) / "stat")[0] in _STOPPED:
                    return True
        return False

    def forget(self) -> None:
        """The next look is the first of a row."""
        self._times = None

    def idle(self, seconds: float) -> bool:
        """Whether they did not run, nor wait for a processor or a disk, in the ``seconds`` since the last look.

        The first look of a row knows nothing, and says False.
        """
        times, at_work = self._look()
        before, self._times = self._times, times
        if before is None or times is None or at_work:
            return False
        return all(now - then < LITTLE * seconds * 1e9 for now, then in zip(times, before, strict=True))

    def _look(self) -> tuple[tuple[int, int] | None, bool]:
        """Nanoseconds that all threads ran, and waited for a processor; and whether one does so right now."""
        ran = waited = 0
        known = False
        for process in self._processes:
            for thread in (_PROC / str(process) / "task").glob("[0-9]*"):
                with contextlib.suppress(OSError, ValueError):
                    if _stat(thread / "stat")[0] in _AT_WORK:
                        return None, True
                    on, off, _ = map(int, (thread / "schedstat").read_text().split())
                    ran, waited, known = ran + on, waited + off, True
        return ((ran, waited) if known else None), False


def _stat(path: Path) -> list[str]:
    """The fields of a ``stat`` file from the state on: state, parent, group …"""
    return path.read_text().rpartition(")")[2].split()
