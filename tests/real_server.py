"""Real servers for tests: ``voicechat serve`` as a child process, at most one of them at a time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 480
"""Bound on a start, the assembling of a model that is not there yet included."""
STOP_SECONDS = 30


def pools() -> set[str]:
    """Names of the pools in shared memory on this machine."""
    return {path.name for path in Path("/dev/shm").glob("voicechat-*")}


def pools_of(pid: int) -> set[str]:
    """Names of the pools that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return set(re.findall(r"/dev/shm/(voicechat-\w+)", maps))


def descendants(pid: int) -> set[int]:
    """Process ids of the children of ``pid``, of their children, and so on."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found: set[int] = set()
    todo = [pid]
    while todo:
        parent = todo.pop()
        children = {child for child, its in parents.items() if its == parent} - found
        found |= children
        todo.extend(children)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_gone(pids: set[int], seconds: float) -> set[int]:
    """Wait for the end of processes; returns those that are still there after ``seconds``."""
    end = time.monotonic() + seconds
    while left := {pid for pid in pids if alive(pid)}:
        if time.monotonic() > end:
            return left
        time.sleep(0.05)
    return set()


class RealServer:
    """One ``voicechat serve`` on a free port of loopback, with every stage real. ``log`` is the path of its output."""

    def __init__(
        self,
        model: str,
        log: Path,
        *arguments: str,
        python: str = sys.executable,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.log = log
        command = [python, "-m", "voicechat", "serve", "--model", model, "--port", "0", *arguments]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            )
        self.url = ""

    def wait(self) -> str:
        """Wait until the server says that it is ready; its base URL, without a slash at the end."""
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r"is ready after .*: (http://\S+?)/?$", self.text(), re.MULTILINE)):
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with code {self.process.returncode}:\n{self.text()}")
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"the server was not ready after {START_SECONDS} s:\n{self.text()}")
            time.sleep(0.1)
        self.url = found[1]
        return self.url

    def text(self) -> str:
        """What the server has printed so far."""
        return self.log.read_text(errors="replace")

    def children(self) -> set[int]:
        """Process ids of the server's stages, their engines and helpers."""
        return descendants(self.process.pid)

    def stop(self) -> None:
        """End the server as a service manager does, and check that nothing of it is left."""
        children, own_pools = self.children(), pools_of(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop:\n{self.text()}") from None
        left = wait_until_gone(children, 5)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes outlived the server:\n{self.text()}"
        assert code == 0, f"the server ended with code {code}:\n{self.text()}"
        assert own_pools, "the server had no pool"
        assert not own_pools & pools(), f"the server left its pool behind:\n{self.text()}"

    def kill(self) -> None:
        """End the server and all that belongs to it the hard way."""
        pids = {self.process.pid, *self.children()}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Servers:
    """Starts real servers when they are first asked for; a server is stopped before another one is started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = ""
        self._server: RealServer | None = None

    def get(self, model: str) -> RealServer:
        """The running server of ``model``; started if it is not there, or has died."""
        if self._server is not None and (self._model != model or self._server.process.poll() is not None):
            self.stop()
        if self._server is None:
            self._model = model
            self._server = RealServer(model, self._folder / f"{model}-{time.monotonic_ns()}.log")
            self._server.wait()
        return self._server

    @property
    def log(self) -> str:
        """What the running server has printed; empty if there is none."""
        return self._server.text() if self._server is not None else ""

    def forget(self) -> None:
        """The running server was ended by a test."""
        self._server = None

    def stop(self) -> None:
        """Stop the running server, if there is one; see :meth:`RealServer.stop`."""
        server, self._server = self._server, None
        if server is None:
            return
        if server.process.poll() is not None:
            raise AssertionError(f"the server had ended with code {server.process.returncode}:\n{server.text()}")
        server.stop()
