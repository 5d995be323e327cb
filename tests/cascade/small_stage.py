"""A stage's process without a model: for tests of how stages are started, watched and ended."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from voicechat.contract.channel import Channel
from voicechat.contract.messages import Abort, Generate, Message, Piece, Released
from voicechat.stages.host import Host, prepare_process, run_host

SLEEPER = [sys.executable, "-c", "import time; time.sleep(1000)"]


class SmallStage(Host):
    """Has a child as an engine has; answers ``Generate`` with its own process id and its child's."""

    def __init__(self, channel: Channel, boot: float) -> None:
        super().__init__(channel)
        self._boot = boot
        self._running: dict[int, asyncio.Task[None]] = {}

    async def warm_up(self) -> dict[str, str | int | float]:
        self._child = subprocess.Popen(SLEEPER)  # noqa: ASYNC220
        await asyncio.sleep(self._boot)
        return {"pid": os.getpid(), "child": self._child.pid, "group": os.getpgrp()}

    def handle(self, message: Message) -> None:
        match message:
            case Generate():
                self._running[message.id] = self.spawn(self._generate(message), "generate")
            case Abort():
                self.cancel(self._running[message.id])
            case _:
                raise TypeError("no")

    async def _generate(self, message: Generate) -> None:
        try:
            if message.max_tokens == 0:
                raise ZeroDivisionError("a fault in a task")
            self.channel.send(Piece(message.id, (str(os.getpid()),), 0))
            await asyncio.sleep(60)
        finally:
            self.channel.send(Released(message.id, 0))


def run(sock: socket.socket, boot: float = 0.0) -> None:
    """A stage that is well."""
    prepare_process(1)
    run_host(sock, lambda channel: SmallStage(channel, boot))


class _Mute(SmallStage):
    """Never answers a ping."""

    async def answer(self) -> None:
        await asyncio.Event().wait()


def run_without_answers(sock: socket.socket) -> None:
    """A stage that does its work, and nothing else."""
    prepare_process(1)
    run_host(sock, lambda channel: _Mute(channel, 0.0))


class _Locked(SmallStage):
    """Waits for ever for a lock that it holds itself."""

    def handle(self, message: Message) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def run_locked(sock: socket.socket) -> None:
    """A stage that locks itself up with its first request."""
    prepare_process(1)
    run_host(sock, lambda channel: _Locked(channel, 0.0))


class _Busy(SmallStage):
    """Works on a request for a second of processor time, in which it hears nothing."""

    def handle(self, message: Message) -> None:
        assert isinstance(message, Generate)
        end = time.process_time() + 1.0
        while time.process_time() < end:
            pass
        self.channel.send(Piece(message.id, ("done",), 0))


def run_busy(sock: socket.socket) -> None:
    """A stage that works hard."""
    prepare_process(1)
    run_host(sock, lambda channel: _Busy(channel, 0.0))


class _Unseen(SmallStage):
    """Can't be looked into."""

    async def profile_engine(self, step: str) -> dict[str, Any] | None:
        raise RuntimeError("not now")


def run_unseen(sock: socket.socket) -> None:
    """A stage that is well, but has an engine that can't be profiled."""
    prepare_process(1)
    run_host(sock, lambda channel: _Unseen(channel, 0.0))


def run_broken(sock: socket.socket) -> None:
    """A stage whose model can't be loaded."""
    prepare_process(1)

    def fail(_: Channel) -> Host:
        raise FileNotFoundError("no such model")

    run_host(sock, fail)


def run_slow_to_begin(sock: socket.socket) -> None:
    """A process that is still importing: it has no group of its own yet."""
    time.sleep(60)


def supervise(pipe: Callable[[object], None]) -> None:
    """A server that starts a stage, says its facts, and then waits to be killed."""
    from voicechat.cascade.stage import Stage

    async def body() -> None:
        stage = Stage("small", run, (), on_message=print, on_death=print)
        await stage.start()
        pipe(stage.facts)
        await asyncio.sleep(60)

    asyncio.run(body())


def supervise_pinging(pipe: Connection) -> None:
    """A server with a stage that would soon be found to hang: says its processes, and when asked how it is."""
    from voicechat.cascade.stage import Stage

    async def body() -> None:
        deaths: list[str] = []
        stage = Stage(
            "small", run, (), on_message=print, on_death=lambda _, how: deaths.append(how), ping_period=0.05,
            max_unanswered=20,
        )  # fmt: skip
        await stage.start()
        pipe.send([stage.facts["pid"], stage.facts["child"]])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        pipe.send((stage.state, len(deaths)))
        await asyncio.sleep(60)

    asyncio.run(body())
