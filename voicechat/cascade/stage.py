"""One stage as the server sees it: a spawned process, its channel, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from voicechat.cascade.last_words import LastWords, ending, speaking_to
from voicechat.cascade.vitals import Vitals
from voicechat.contract.channel import Channel
from voicechat.contract.messages import Message, Ping, Pong, Profile, Profiled, Ready, Shutdown

log = logging.getLogger(__name__)

# A killed stage leaves semaphores behind; Python's resource tracker removes them, and need not warn of it.
os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
_spawn = multiprocessing.get_context("spawn")


PING_PERIOD = 0.5
"""Seconds between two pings, and two looks at the stage's processes."""
STOPPED_S = 1.0
"""Seconds for which a process of a stage may be stopped, before the stage is taken to hang."""
IDLE_S = 1.5
"""Seconds for which a stage that owes an answer may do nothing, before it is taken to hang."""
_FIND_EVERY = 20
"""Looks between two searches for the processes of a stage."""
PROFILE_PATIENCE = 60.0
"""Seconds that a stage may take to sum its profile up."""
MAX_UNANSWERED = 120
"""Pings in a row after which a stage that says nothing is taken to hang, however hard it works, and is killed.

Pings and looks are counted, not seconds: when everything is paused, the server makes none."""


class StageLike(Protocol):
    """What the coordinator knows of a stage."""

    name: str

    @property
    def up(self) -> bool:
        """True while it takes requests."""

    @property
    def state(self) -> str:
        """For health reports: ``up``, ``starting``, ``down`` or what else there is to say."""

    @property
    def pid(self) -> int | None:
        """Its process, if it has one."""

    @property
    def buried(self) -> bool:
        """True if no process of an earlier life of it runs any more, which might still write into the pool."""

    @property
    def worked(self) -> bool:
        """True if this life of it, or the last one, has done any work for a request."""

    @property
    def diagnosis(self) -> str | None:
        """How it ended the last time without being asked to, and what is known of why; for operators."""

    @property
    def last_words(self) -> tuple[str, ...]:
        """The last lines that it wrote to its standard error."""

    async def start(self) -> None:
        """Return once it is up. Raises RuntimeError if it can't be."""

    def send(self, message: Message) -> None:
        """Send at once, or drop the message if the stage is gone."""

    async def stop(self) -> None:
        """End it in good order."""


class Stage:
    """Spawns ``target(socket, *args)`` in a process group of its own and passes its messages to ``on_message``.

    ``on_death(stage, description)`` is called once, on the loop, when the process has ended without being asked to.
    """

    def __init__(
        self,
        name: str,
        target: Callable[..., None],
        args: tuple[Any, ...],
        *,
        on_message: Callable[[Message], None],
        on_death: Callable[[Stage, str], None],
        ping_period: float = PING_PERIOD,
        max_unanswered: int = MAX_UNANSWERED,
    ) -> None:
        self.name = name
        self.facts: dict[str, str | int | float] = {}
        self._target = target
        self._args = args
        self._on_message = on_message
        self._on_death = on_death
        self._process: BaseProcess | None = None
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._ready: asyncio.Future[None] | None = None
        self._ping_period = ping_period
        self._max_unanswered = max_unanswered
        self._unanswered = 0
        self._hung: str | None = None
        self.worked = False
        self.diagnosis: str | None = None
        self._words = LastWords()
        self._profile: asyncio.Future[dict[str, Any]] | None = None
        self._dead_groups: set[int] = set()

    @property
    def up(self) -> bool:
        """True between readiness and death."""
        return self._ready is not None and self._ready.done() and not self._ready.exception() and self.alive

    @property
    def alive(self) -> bool:
        """True while the process runs and its channel is open."""
        return self._channel is not None and self._process is not None and self._process.is_alive()

    @property
    def state(self) -> str:
        """For health reports: ``up``, ``starting`` or ``down``."""
        return "up" if self.up else "starting" if self.alive else "down"

    @property
    def buried(self) -> bool:
        """True if every process group of earlier lives is known to be gone."""
        self._dead_groups = {group for group in self._dead_groups if not group_is_gone(group)}
        return not self._dead_groups

    @property
    def last_words(self) -> tuple[str, ...]:
        """The last lines that it wrote to its standard error, in this life or the last one."""
        return self._words.lines

    @property
    def pid(self) -> int | None:
        """Process id of the stage's host; its process group has the same id."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Spawn the process and wait until it is ready. Raises RuntimeError if it dies before that."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ear, mouth = socket.socketpair()
        self._stopping, self._hung, self.worked = False, None, False
        self._unanswered = 0
        self._ready = loop.create_future()
        arguments = (mouth, self._target, theirs, *self._args)
        self._process = _spawn.Process(target=speaking_to, args=arguments, name=f"voicechat-{self.name}")
        self._process.start()  # from this very thread: the child asks to end with the thread that made it
        theirs.close()
        mouth.close()
        self._words = LastWords()
        hearing = loop.create_task(self._words.listen(ear), name=f"stderr-{self.name}")
        self._channel = await Channel.open(ours)
        listening = self._listen(self._channel, self._process, hearing)
        self._task = loop.create_task(listening, name=f"stage-{self.name}")
        await asyncio.shield(self._ready)

    def send(self, message: Message) -> None:
        """Send at once; dropped if the stage is gone (its death is reported by ``on_death``)."""
        if self._channel is not None:
            self._channel.send(message)

    async def profile(self, seconds: float, gpu_seconds: float) -> dict[str, Any]:
        """What the stage says of its own work in the next seconds. Raises TimeoutError if it says nothing."""
        self._profile = asyncio.get_running_loop().create_future()
        self.send(Profile(seconds, gpu_seconds))
        return await asyncio.wait_for(self._profile, seconds + gpu_seconds + PROFILE_PATIENCE)

    async def stop(self, patience: float = 10.0) -> None:
        """Ask the process to leave, and end its whole group after ``patience`` seconds."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        if self._ready is not None and self._ready.done():
            self.send(Shutdown())
            await self._joined(process, patience)
        self._kill_group(process)
        if self._task is not None:
            await self._task

    async def _listen(self, channel: Channel, process: BaseProcess, hearing: asyncio.Task[None]) -> None:
        assert self._ready is not None
        watching = asyncio.get_running_loop().create_task(self._watch(channel, process), name=f"watch-{self.name}")
        async for message in channel:
            self._unanswered = 0
            if isinstance(message, Ready):
                self.facts = dict(message.facts)
                log.info("the %s stage (pid %s) is up: %s", self.name, process.pid, self.facts)
                if not self._ready.done():
                    self._ready.set_result(None)
            elif isinstance(message, Profiled):
                if self._profile is not None and not self._profile.done():
                    self._profile.set_result(message.report)
            elif not isinstance(message, Pong):
                self.worked = True
                self._on_message(message)
        watching.cancel()
        channel.close()
        self._channel = None
        if process.pid is not None:
            self._dead_groups.add(process.pid)
        await self._joined(process, 0.5)
        self._kill_group(process)
        await self._joined(process, 5.0)
        # What it said is known to the end, unless something outlives its group.
        await asyncio.wait({hearing}, timeout=0.2)
        hearing.cancel()
        if self._stopping:
            return
        how = ending(process.exitcode, hung=self._hung is not None)
        cause = self._hung or self._words.cause(process.exitcode)
        self.diagnosis = f"{how}: {cause}" if cause else how
        if not self._ready.done():
            self._ready.set_exception(RuntimeError(f"the {self.name} stage ended while starting ({self.diagnosis})"))
            return
        log.error("the %s stage (pid %s) ended: %s", self.name, process.pid, self.diagnosis)
        self._on_death(self, how)

    async def _watch(self, channel: Channel, process: BaseProcess) -> None:
        """Ping a stage that is up, look at its processes, and kill it when it is found to hang."""
        assert process.pid is not None
        assert self._ready is not None
        vitals, stopped, idle, found_up = Vitals(process.pid), 0, 0, False
        for number in itertools.count():
            await asyncio.sleep(self._ping_period)
            if self._stopping:
                return
            up = self._ready.done()
            if number % _FIND_EVERY == 0 or up != found_up:
                await asyncio.to_thread(vitals.find)
                found_up = up
            stopped = stopped + 1 if vitals.stopped else 0
            if self._unanswered:
                idle = idle + 1 if vitals.idle(self._ping_period) else 0
            else:
                vitals.forget()
                idle = 0
            if (why := self._why_hung(stopped, idle)) is not None:
                log.error("the %s stage (pid %s) hangs: %s", self.name, process.pid, why)
                self._hung = why
                self._kill_group(process)
                return
            if up:
                self._unanswered += 1
                channel.send(Ping(number))

    def _why_hung(self, stopped: int, idle: int) -> str | None:
        """What shows that the stage hangs, after so many looks at which it was stopped or idle in a row; else None."""
        if stopped >= math.ceil(STOPPED_S / self._ping_period):
            return "a process of it is stopped"
        if idle >= math.ceil(IDLE_S / self._ping_period):
            return "it owes an answer, and does nothing"
        if self._unanswered >= self._max_unanswered:
            return f"it left {self._unanswered} pings unanswered"
        return None

    @staticmethod
    async def _joined(process: BaseProcess, patience: float) -> None:
        """Wait for the end of a process without blocking the loop, at most ``patience`` seconds."""
        await asyncio.get_running_loop().run_in_executor(None, process.join, patience)

    @staticmethod
    def _kill_group(process: BaseProcess) -> None:
        """End what is left of the stage's process group: an engine core outlives a killed host otherwise.

        A process that still imports has no group of its own yet; it is ended by itself.
        """
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def group_is_gone(group: int) -> bool:
    """Whether no process of a process group runs. One that has ended and was not waited for does not run."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its = path.read_text().rpartition(")")[2].split()[:3]
            if int(its) == group and state not in "ZX":
                return False
    return True
