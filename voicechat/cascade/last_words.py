"""What a stage's process wrote to its standard error before it ended, and what may have ended it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINES = 40
"""Last lines that are kept."""
_LINE = 500
"""Characters that are kept of a line."""
_NO_MEMORY = ("out of memory", "outofmemoryerror", "memoryerror", "bad_alloc", "cannot allocate memory")


class LastWords:
    """Passes what comes from a socket on to this process's own standard error, and keeps the last lines."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=LINES)
        self._oom_kills = oom_kills()

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines, the oldest first."""
        return tuple(self._lines)

    async def listen(self, sock: socket.socket) -> None:
        """Read until every process that holds the other end has ended."""
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        partial = b""
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    with contextlib.suppress(OSError):  # nobody reads this server's own
                        os.write(2, data)
                    *lines, partial = (partial + data).split(b"\n")
                    self._lines.extend(_shown(line) for line in lines if line.strip())
                    partial = partial[-8 * _LINE :]
            if partial.strip():
                self._lines.append(_shown(partial))
        finally:
            writer.close()

    def cause(self, code: int | None) -> str | None:
        """What may have ended the process, as far as it can be known from outside."""
        if (hint := self._memory(code)) is not None:
            return hint
        said = next((line for line in reversed(self._lines) if _is_error(line)), None)
        return f"it last said: {said}" if said else None

    def _memory(self, code: int | None) -> str | None:
        if any(word in line.lower() for line in self._lines for word in _NO_MEMORY):
            return "it ran out of memory"
        if code == -signal.SIGKILL and (now := oom_kills()) is not None and now > (self._oom_kills or 0):
            return "the kernel has killed processes for want of memory meanwhile (see dmesg)"
        return None


def ending(code: int | None, *, hung: bool) -> str:
    """How a process ended, in few words that may be shown to anybody."""
    if hung:
        return "it hung and was killed"
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").strip("\r")[:_LINE]


def _is_error(line: str) -> bool:
    """Whether this is the last line of a traceback, or what a library says before it gives up."""
    name = line.split(":", 1)[0]
    return not line.startswith(" ") and " " not in name and name.endswith(("Error", "Exception", "Exit", "Interrupt"))


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory since it began; None where it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def speaking_to(mouth: socket.socket, target: Callable[..., None], *args: Any) -> None:
    """Body of a process: its standard error goes to ``mouth``, also that of what it starts; the rest is ``target``."""
    os.dup2(mouth.fileno(), 2)
    mouth.close()
    target(*args)
