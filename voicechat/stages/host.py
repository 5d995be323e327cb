"""What every stage's process does first and last: its own process group, its environment, its channel, its end."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from voicechat.contract import logs
from voicechat.contract.channel import Channel
from voicechat.contract.messages import Message, Ping, Pong, Profile, Profiled, Ready, Shutdown
from voicechat.contract.stopwatch import Stopwatch, observe

log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1


def prepare_process(threads: int, log_level: int = logging.INFO, cores: tuple[int, ...] = ()) -> None:
    """Set the process up before torch is imported: group, signals, cores (none: all), threads, logging."""
    os.setpgid(0, 0)
    die_with_parent()
    if cores:
        os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle; it then tells the stages
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning,ignore::DeprecationWarning")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logs.configure(log_level, process=True)
    quiet("faster_whisper")


def quiet(library: str) -> None:
    """Let a chatty library log its errors alone, unless everything is wanted."""
    level = logging.getLogger().level
    logging.getLogger(library).setLevel(max(level, logging.ERROR) if level > logging.DEBUG else level)


def die_with_parent() -> None:
    """Ask Linux to end this process when the one that spawned it ends; do so at once if that has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)


class Host(ABC):
    """Runs a stage: reads commands and at once starts a task for each. Subclasses say what to do."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def warm_up(self) -> dict[str, str | int | float]:
        """Load, warm up, and return the facts of :class:`~voicechat.contract.messages.Ready`."""

    @abstractmethod
    def handle(self, message: Message) -> None:
        """Take one command. Must not block."""

    async def close(self) -> None:
        """Let go of engines and threads."""

    async def answer(self) -> None:
        """Return once all that this stage works with has given a sign of life; a ping is answered then."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` in the background; a fault in it ends the process, for nobody else would learn of it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    @staticmethod
    def cancel(task: asyncio.Task[None]) -> None:
        """Cancel a task of :meth:`spawn`, but not before its first step: else its ``finally`` would never run."""
        asyncio.get_running_loop().call_soon(task.cancel)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a task of this stage failed", exc_info=error)
            os.killpg(0, signal.SIGKILL)

    def watch_work(self, watch: Stopwatch) -> None:
        """Have the stopwatch look at this process's own work; see :meth:`profile`."""

    async def profile_engine(self, step: str) -> dict[str, Any] | None:
        """Tell the engine's worker to ``begin``, to ``record`` and to ``finish`` (then with its report)."""
        return None

    async def profile(self, message: Profile) -> dict[str, Any]:
        """Look at this stage for a while.

        ``host``: of this process, as :func:`~voicechat.contract.stopwatch.observe` tells: messages are those out and
        in, and the ``share`` of the time is that of single parts of its work. ``engine``: see
        :mod:`voicechat.stages.profile`;
        null without one.
        A look that failed is an ``error``.
        """
        watch, channel = Stopwatch(), self.channel
        self.watch_work(watch)
        await self.profile_engine("begin")
        host = await observe(watch, message.seconds, lambda: channel.sent + channel.received)
        await self.profile_engine("record")
        await asyncio.sleep(message.gpu_seconds)
        return {"host": host, "engine": await self.profile_engine("finish")}

    async def _profile(self, message: Profile) -> None:
        try:
            report = await self.profile(message)
        except Exception as error:  # vLLM has no narrower one for a call that failed, and a look must not end a stage
            log.exception("the profile failed")
            report = {"error": str(error)}
        self.channel.send(Profiled(report))

    async def _pong(self, number: int) -> None:
        await self.answer()
        self.channel.send(Pong(number))

    async def serve(self) -> None:
        """Warm up, then handle commands until told to leave or the server is gone."""
        self.channel.send(Ready(await self.warm_up()))
        async for message in self.channel:
            if isinstance(message, Shutdown):
                break
            if isinstance(message, Ping):
                self.spawn(self._pong(message.number), f"ping-{message.number}")
            elif isinstance(message, Profile):
                self.spawn(self._profile(message), "profile")
            else:
                self.handle(message)
        for task in list(self._tasks):
            task.cancel()
        await self.close()
        self.channel.close()


def run_host(sock: socket.socket, make: Callable[[Channel], Host]) -> None:
    """Body of a stage's process: returns when the stage is over, then ends the whole process group."""

    async def body() -> None:
        await make(await Channel.open(sock)).serve()

    try:
        asyncio.run(body())
    except BaseException:
        log.critical("this stage failed", exc_info=True)
        raise
    finally:
        logging.shutdown()
        os.killpg(0, signal.SIGKILL)  # Python's own exit would wait for the engine core
