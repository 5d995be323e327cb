"""A coordinator over stages without models, all of it driven by one generator of random numbers in jumping time."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.cascade.doubles import DOUBLES, STEP_BYTES, STEP_SAMPLES, JumpingLoop, StageDouble
from voicechat.cascade.chunks import ChunkPolicy
from voicechat.cascade.coordinator import Coordinator
from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import CascadeError
from voicechat.contract.events import AudioDelta, Event, Finished, TextDelta
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.requests import AudioPart, ImagePart, Message, ResponseRequest, SpeechRequest, TextPart

MODEL = ModelInfo("double", ("ann", "ben"), "ann", False, 512, 0)
POLICIES = {True: ChunkPolicy(2, 2.0, 8, 3, 1), False: ChunkPolicy(6, 1.5, 12, 4, 1)}
PATIENCE = 20_000
"""Steps after which a run that does not come to rest is a hang."""


@dataclass
class Caller:
    """Reads one response to its end."""

    response: Any
    events: list[Event] = field(default_factory=list)
    error: CascadeError | None = None

    async def read(self) -> None:
        try:
            async for event in self.response:
                self.events.append(event)
        except CascadeError as error:
            self.error = error

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def sound(self) -> np.ndarray:
        parts = [event.pcm for event in self.events if isinstance(event, AudioDelta)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)

    @property
    def finished(self) -> Finished | None:
        ends = [event for event in self.events if isinstance(event, Finished)]
        assert len(ends) <= 1
        return ends[0] if ends else None


class World:
    """A coordinator over doubles, everything driven by one generator of random numbers."""

    def __init__(
        self,
        rng: random.Random,
        *,
        slots: int = 2,
        timeout: float = 5.0,
        waiting: int = 8,
        hidden_states: bool = True,
        model: ModelInfo = MODEL,
    ) -> None:
        self.rng = rng
        spec = PoolSpec(
            name=PoolSpec.new_name(),
            slots=slots,
            hidden_size=4,
            max_rows=16,
            max_text_rows=16,
            pcm_samples=20 * STEP_SAMPLES,
            bays=2,
            bay_samples=1000,
        )
        self.pool = Pool(spec, create=True)
        spawners = {name: functools.partial(double, rng, name) for name, double in DOUBLES.items()}
        self.cascade = Coordinator(
            model,
            self.pool,
            spawners,  # type: ignore[arg-type]
            POLICIES,
            decodes=2,
            acquire_timeout=timeout,
            max_waiting=waiting,
            step_samples=STEP_SAMPLES,
            step_bytes=STEP_BYTES,
            hidden_states=hidden_states,
            thinks=hidden_states,
        )
        self.stages: dict[str, StageDouble] = self.cascade.stages  # type: ignore[assignment]
        for stage in self.stages.values():
            stage.pool = self.pool
        self.callers: list[tuple[Caller, asyncio.Task[None]]] = []

    async def start(self) -> None:
        starting = asyncio.create_task(self.cascade.start())
        await self.run_until(starting.done)
        await starting

    async def step(self, count: int = 1) -> None:
        """Some stage does something, and the loop goes round."""
        for _ in range(count):
            self.rng.choice(list(self.stages.values())).step()
            await asyncio.sleep(0 if self.rng.random() < 0.95 else 0.004)

    async def run_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(PATIENCE):
            if condition():
                return
            await self.step()
        raise AssertionError("this does not come to rest")

    def ask(self, *parts: TextPart | AudioPart | ImagePart, **fields: Any) -> Caller:
        message = Message("user", parts or (TextPart("Hello"),))
        caller = Caller(self.cascade.respond(ResponseRequest((message,), **fields)))
        self.callers.append((caller, asyncio.create_task(caller.read())))
        return caller

    def speak(self, text: str, **fields: Any) -> Caller:
        caller = Caller(self.cascade.speak(SpeechRequest(text, **fields)))
        self.callers.append((caller, asyncio.create_task(caller.read())))
        return caller

    async def all_ended(self) -> None:
        await self.run_until(lambda: all(task.done() for _, task in self.callers))
        for _, task in self.callers:
            await task

    async def rest(self) -> None:
        """Everything has come to its end: no slot, bay, state or waiting request is left over."""
        await self.all_ended()
        leases, bays = self.cascade.leases, self.cascade.hearing.bays
        await self.run_until(
            lambda: (
                leases.free == leases.total
                and bays.free == bays.total
                and not self.cascade.traffic.states
                and not self.cascade.hearing.pending
                and self.cascade.ready
                and not any(stage.inbox for stage in self.stages.values())
            )
        )
        assert not self.stages["voicebox"].held, "the VoiceBox holds nothing of any reply"  # type: ignore[attr-defined]
        assert leases.waiting == bays.waiting == 0
        for caller, _ in self.callers:
            assert (caller.finished is None) == (caller.error is not None), "exactly one end"
            assert caller.response._events.empty(), "nothing after the end"


def in_jumping_time(body: Callable[[random.Random], Awaitable[None]], seed: int) -> None:
    loop = JumpingLoop()
    try:
        loop.run_until_complete(body(random.Random(seed)))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def simulated(body: Callable[[World], Awaitable[None]], seed: int = 0, **sizes: Any) -> None:
    """Run ``body`` over a warm world, then let everything come to rest."""

    async def run(rng: random.Random) -> None:
        world = World(rng, **sizes)
        try:
            await world.start()
            await body(world)
            await world.rest()
        finally:
            await world.cascade.stop()

    in_jumping_time(run, seed)


async def transcribed(world: World, samples: int) -> str:
    task = asyncio.create_task(world.cascade.transcribe(np.zeros(samples, np.float32)))
    await world.run_until(task.done)
    return await task
