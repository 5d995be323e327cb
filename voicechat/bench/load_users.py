"""The load benchmark's users, spread over processes: one Python process can't listen to hundreds of streams in time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import uvloop

from voicechat.bench.askers import SOUND_RATE, Asker, LineAsker, RestAsker
from voicechat.bench.chat_client import ChatClient
from voicechat.bench.loop import Outcome, closed_loop
from voicechat.bench.omni_client import OmniClient
from voicechat.bench.realtime_ws import WsLine
from voicechat.bench.turn import Question, Turn
from voicechat.faces.looplag import LoopLag

USERS_EACH = 16
"""Users of one process, where there are processors enough."""
FRAME_S = 0.04
"""Seconds of sound in one message of a user over WebSocket."""
CLIENTS: dict[str, type[ChatClient]] = {"voicechat": ChatClient, "vllm-omni": OmniClient}
CORES_EACH = 4
"""Of so many cores, one may be taken up by users."""


@dataclass(frozen=True, slots=True)
class UserPlan:
    """What users do. ``sounds``: over WebSocket, each question spoken. ``server``: whose words it speaks, of
    :data:`CLIENTS`."""

    transport: str
    base: str
    api_key: str | None
    max_tokens: int
    silence_ms: int
    timeout_s: float
    sounds: dict[str, Any] = field(default_factory=dict)
    server: str = "voicechat"


def process_count(users: int) -> int:
    """How many processes the users are spread over."""
    return max(1, min(-(-users // USERS_EACH), (os.cpu_count() or 1) // CORES_EACH))


class Users:
    """``count`` users, ready to ask. To be opened by :meth:`ready`."""

    def __init__(self, plan: UserPlan, count: int, processes: int) -> None:
        self.processes = processes
        self.lags: list[tuple[float, float]] = []
        """p50 and p99 of each process's own event loop in milliseconds, of the last round."""
        context = multiprocessing.get_context("spawn")
        self._children: list[tuple[Any, Connection]] = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            mine = len(range(number, count, processes))
            child = context.Process(target=_run, args=(theirs, plan, mine), name=f"users-{number}", daemon=True)
            child.start()
            theirs.close()
            self._children.append((child, ours))

    @classmethod
    @contextlib.asynccontextmanager
    async def ready(cls, plan: UserPlan, count: int, processes: int) -> AsyncIterator[Users]:
        """The users, their processes started; these end with the block."""
        users = cls(plan, count, processes)  # from this very thread: the children end with the thread that made them
        try:
            await users._all()
            yield users
        finally:
            await asyncio.to_thread(users._stop)

    async def ask(self, texts: Sequence[str]) -> Outcome:
        """As :func:`~voicechat.bench.loop.closed_loop`; the questions are dealt out to the processes beforehand."""
        begun = time.perf_counter()
        for number, (_, connection) in enumerate(self._children):
            connection.send(list(texts[number :: self.processes]))
        found: list[tuple[list[Turn], tuple[float, float]]] = await self._all()
        self.lags = [lag for _, lag in found]
        return Outcome([turn for turns, _ in found for turn in turns], time.perf_counter() - begun)

    async def _all(self) -> list[Any]:
        receive = [asyncio.to_thread(connection.recv) for _, connection in self._children]
        return list(await asyncio.gather(*receive))

    def _stop(self) -> None:
        for child, connection in self._children:
            child.kill()
            child.join()
            connection.close()


def _run(connection: Connection, plan: UserPlan, count: int) -> None:
    """Body of a process: questions in, turns out, until it is killed or its parent is gone."""
    from voicechat.stages.host import die_with_parent

    die_with_parent()
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        uvloop.run(_serve(connection, plan, count))


async def _serve(connection: Connection, plan: UserPlan, count: int) -> None:
    async with open_askers(plan, count) as askers:
        connection.send(None)
        while True:
            texts = await asyncio.to_thread(connection.recv)
            turns, lag = await ask_all(plan, askers, texts)
            connection.send((turns.turns, lag))


@contextlib.asynccontextmanager
async def open_askers(plan: UserPlan, count: int) -> AsyncIterator[list[Asker]]:
    """``count`` users of this process."""
    limits = aiohttp.ClientTimeout(total=None, sock_connect=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as http:
        client = CLIENTS[plan.server](http, plan.base, api_key=plan.api_key)
        model = await client.look()
        if plan.transport == "rest":
            rest = RestAsker(client, latency_first=True, max_tokens=plan.max_tokens, timeout_s=plan.timeout_s)
            yield [rest] * count
            return
        detection = {"type": "server_vad", "silence_duration_ms": plan.silence_ms}
        session = {
            "type": "realtime",
            "model": model,
            "max_output_tokens": plan.max_tokens,
            "audio": {"input": {"turn_detection": detection, "transcription": {"model": "whisper-1"}}},
        }
        line = functools.partial(
            WsLine.open, http, plan.base, headers=client.headers, session=session, frame_s=FRAME_S
        )  # fmt: skip
        yield [LineAsker(line, timeout_s=plan.timeout_s) for _ in range(count)]


async def ask_all(plan: UserPlan, askers: Sequence[Asker], texts: Sequence[str]) -> tuple[Outcome, tuple[float, float]]:
    """The closed loop in this process, and its event loop's lag in milliseconds, p50 and p99."""
    asked = [
        Question(text) if plan.transport == "rest" else Question(text, plan.sounds[text], SOUND_RATE) for text in texts
    ]
    lag = LoopLag()
    measuring = asyncio.create_task(lag.measure())
    try:
        outcome = await closed_loop(askers, asked)
    finally:
        measuring.cancel()
    return outcome, (lag.percentile_ms(50), lag.percentile_ms(99))
