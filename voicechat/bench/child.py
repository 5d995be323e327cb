"""A server as a child process, on a free loopback port, for as long as a benchmark lasts."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp

from voicechat.bench.outcome import BenchError

_POLL_S = 0.25
_STOP_S = 20.0
_TAIL_LINES = 15
_PR_SET_PDEATHSIG = 1


class ServerError(BenchError):
    """The server did not come up; ``str()`` holds the end of what it wrote."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def child_server(
    arguments: Sequence[str], *, http: aiohttp.ClientSession, timeout_s: float
) -> AsyncIterator[tuple[str, float]]:
    """Run ``voicechat serve`` with ``arguments``; its address, and the seconds that it took until it was ready.

    Raises :class:`ServerError`. The server is stopped in the end, whatever happens.
    """
    port = free_port()
    command = [sys.executable, "-m", "voicechat", "serve", "--host", "127.0.0.1", "--port", str(port), *arguments]
    with tempfile.TemporaryDirectory(prefix="voicechat-bench-") as folder:
        path = Path(folder) / "server.log"
        with path.open("wb") as output:
            begun = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
            try:
                base = f"http://127.0.0.1:{port}"
                await _until_ready(process, http, base, timeout_s, path)
                yield base, time.perf_counter() - begun
            finally:
                await _stop(process)


def _end_with_parent() -> None:
    """Ask Linux to end the server, in good order, when the benchmark is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


async def _until_ready(
    process: asyncio.subprocess.Process, http: aiohttp.ClientSession, base: str, timeout_s: float, log: Path
) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.returncode is not None:
            raise ServerError(f"the server ended with exit code {process.returncode}:\n{_tail(log)}")
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with http.get(f"{base}/readyz", timeout=aiohttp.ClientTimeout(total=5)) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(_POLL_S)
    raise ServerError(f"the server was not ready within {timeout_s:g} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        # Its stages have process groups of their own and end with their parent.
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
