"""The coordinator over stages without models: any order of messages, cancels, failures and deaths ends well.

For every response exactly one end, nothing after it; in the end all slots are free and nothing is kept.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cascade.doubles import DOUBLES, JumpingLoop, StageDouble, ThinkerDouble
from voicechat.cascade import coordinator as module
from voicechat.cascade.api import (
    AudioDelta,
    AudioPart,
    CascadeError,
    Event,
    Finished,
    FinishReason,
    Heard,
    InvalidRequest,
    Message,
    ModelInfo,
    NotReady,
    Overloaded,
    ResponseRequest,
    StageFailed,
    TextDelta,
    TextPart,
)
from voicechat.cascade.chunks import ChunkPolicy
from voicechat.cascade.coordinator import STEP_SAMPLES, Coordinator
from voicechat.cascade.messages import Abort, Codes, Generate, Piece, Released, Speak, Text
from voicechat.cascade.pool import Pool, PoolSpec

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

    def __init__(self, rng: random.Random, *, slots: int = 2, timeout: float = 5.0, waiting: int = 8) -> None:
        self.rng = rng
        spec = PoolSpec(
            name=PoolSpec.new_name(),
            slots=slots,
            hidden_size=4,
            max_rows=16,
            max_symbols=16,
            pcm_samples=20 * STEP_SAMPLES,
            bays=2,
            bay_samples=1000,
        )
        self.pool = Pool(spec, create=True)
        spawners = {name: functools.partial(double, rng, name) for name, double in DOUBLES.items()}
        self.cascade = Coordinator(
            MODEL,
            self.pool,
            spawners,  # type: ignore[arg-type]
            POLICIES,
            decodes=2,
            acquire_timeout=timeout,
            max_waiting=waiting,
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

    def ask(self, *parts: TextPart | AudioPart, **fields: Any) -> Caller:
        message = Message("user", parts or (TextPart("Hello"),))
        caller = Caller(self.cascade.respond(ResponseRequest((message,), **fields)))
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
                and not self.cascade._states
                and not self.cascade.hearing.pending
                and self.cascade.ready
            )
        )
        assert leases.waiting == bays.waiting == 0
        for caller, _ in self.callers:
            assert (caller.finished is None) == (caller.error is not None), "exactly one end"
            assert caller.response._events.empty(), "nothing after the end"


def in_jumping_time(body: Callable[[random.Random], Awaitable[None]], seed: int) -> None:
    loop = JumpingLoop()
    try:
        # the doubles' last writes come with their death; the rest of a real one is measured by the real clock
        with mock.patch.object(module, "_DEAD_SLOT_REST", 0.0):
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


def request_of(rng: random.Random) -> tuple[tuple[TextPart | AudioPart, ...], dict[str, Any]]:
    parts: list[TextPart | AudioPart] = [TextPart(rng.choice(["Hello", "Hello", "Hello", "refuse me"]))]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        parts.insert(rng.randint(0, 1), AudioPart(np.zeros(rng.choice([100, 1000, 1000, 2000]), np.float32)))
    return tuple(parts), {
        "audio": rng.random() < 0.8,
        "voice": rng.choice([None, None, "ben", "nobody"]),
        "latency_first": rng.random() < 0.5,
    }


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["calm", "cancels", "deaths"]))
def test_any_order_of_events_ends_well(seed: int, mood: str) -> None:
    async def body(world: World) -> None:
        rng = world.rng
        for _ in range(rng.randint(1, 60)):
            await world.step(rng.randint(0, 25))
            choice = rng.random()
            if choice < 0.5:
                parts, fields = request_of(rng)
                world.ask(*parts, **fields)
            elif choice < 0.8 and mood != "calm" and world.callers:
                caller, _ = rng.choice(world.callers)
                caller.response.cancel()
            elif choice < 0.9 and mood == "deaths":
                stage = rng.choice(list(world.stages.values()))
                thinker = world.stages["thinker"]
                assert isinstance(thinker, ThinkerDouble)
                if rng.random() < 0.3:
                    thinker.break_off()
                elif stage.up:
                    stage.die()
            elif choice < 0.95:
                await asyncio.sleep(rng.choice([0.01, 1.0]))

    simulated(body, seed, slots=random.Random(seed).randint(1, 3), timeout=random.Random(seed).choice([0.05, 5.0]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_was_made_is_what_arrives(seed: int) -> None:
    """Text and sound of several replies at once, none lost, doubled, out of order or in another's hands."""
    made: dict[int, list[int]] = {}
    written: dict[int, list[str]] = {}

    async def body(world: World) -> None:
        talker, thinker = world.stages["talker"], world.stages["thinker"]
        for stage, kind, store in ((talker, Codes, made), (thinker, Piece, written)):
            deliver = stage._on_message

            def spy(message: Any, deliver: Any = deliver, kind: type = kind, store: Any = store) -> None:
                if isinstance(message, kind):
                    store.setdefault(message.id, []).extend(getattr(message, "codes", None) or message.pieces)
                deliver(message)

            stage._on_message = spy
        callers = []
        for _ in range(6):
            callers.append(world.ask(latency_first=world.rng.random() < 0.5))
            await world.step(world.rng.randint(0, 40))
        await world.all_ended()
        for caller in callers:
            number = caller.response.number
            assert caller.error is None
            assert caller.text == "".join(written.get(number, []))
            codes = made.get(number, [])
            assert np.array_equal(caller.sound, np.repeat(np.array(codes, np.int16), STEP_SAMPLES))
            assert caller.finished is not None
            usage = caller.finished.usage
            assert usage.completion_tokens == len(written.get(number, []))
            assert usage.speech_tokens == len(codes)
            assert usage.audio_out_seconds == pytest.approx(0.04 * len(codes))
            assert caller.finished.reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert (usage.prompt_tokens, usage.cached_tokens) == (7, 3)
            if codes:
                assert caller.finished.times.handoff_us == 12.5

    simulated(body, seed, slots=3)


def test_a_question_of_text_and_sounds() -> None:
    async def body(world: World) -> None:
        caller = world.ask(
            AudioPart(np.zeros(100, np.float32)), TextPart("and"), AudioPart(np.zeros(200, np.float32)), audio=False
        )
        await world.all_ended()
        assert caller.events[0] == Heard(("100", "200"))
        (asked,) = (
            m for m in world.stages["thinker"].log if isinstance(m, Generate) and m.id == caller.response.number
        )
        assert asked.turns[-1].text == "100\nand\n200"
        assert not asked.rows
        assert caller.finished is not None
        assert caller.finished.usage.audio_in_seconds == pytest.approx(300 / 16_000)
        assert caller.finished.times.ears is not None

    simulated(body)


def test_many_sounds_of_one_caller_leave_room_for_others() -> None:
    """More than there are bays and places to wait: the caller does not stand in its own way."""

    async def body(world: World) -> None:
        caller = world.ask(*(AudioPart(np.zeros(100 + index, np.float32)) for index in range(20)), audio=False)
        assert await transcribed(world, 7) == "7"
        await world.all_ended()
        assert caller.events[0] == Heard(tuple(str(100 + index) for index in range(20)))

    simulated(body, waiting=3)


def test_text_alone_needs_no_slot() -> None:
    async def body(world: World) -> None:
        blockers = [world.ask() for _ in range(2)]
        await world.step(3)
        assert world.cascade.leases.free == 0
        caller = world.ask(audio=False)
        await world.run_until(lambda: caller.finished is not None)
        assert caller.sound.size == 0
        for blocker in blockers:
            blocker.response.cancel()

    simulated(body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "nobody"}, "voice"),
        ({"messages": ()}, "messages"),
        ({"messages": (Message("user", (AudioPart(np.zeros(0, np.float32)),)),)}, "messages"),
        ({"messages": (Message("user", (AudioPart(np.zeros(1001, np.float32)),)),)}, "messages"),
        ({"messages": (Message("user", (AudioPart(np.zeros((2, 5), np.float32)),)),)}, "messages"),
        ({"messages": (Message.text("user", "refuse me"),)}, "messages"),
    ],
)
def test_bad_requests_name_what_is_wrong(fields: dict[str, Any], param: str) -> None:
    async def body(world: World) -> None:
        request = ResponseRequest(**{"messages": (Message.text("user", "Hello"),), **fields})
        caller = Caller(world.cascade.respond(request))
        world.callers.append((caller, asyncio.create_task(caller.read())))
        await world.all_ended()
        assert isinstance(caller.error, InvalidRequest)
        assert caller.error.param == param
        assert not caller.text

    simulated(body)


def test_an_unknown_voice_does_not_matter_to_text() -> None:
    async def body(world: World) -> None:
        caller = world.ask(audio=False, voice="nobody")
        await world.all_ended()
        assert caller.error is None

    simulated(body)


def test_a_full_pool_lets_wait_and_then_refuses() -> None:
    async def body(world: World) -> None:
        holders = [world.ask() for _ in range(2)]
        await asyncio.sleep(0.01)
        waiting = [world.ask() for _ in range(3)]
        await asyncio.sleep(0.01)
        assert world.cascade.leases.waiting == 3
        too_many = world.ask()
        await asyncio.sleep(0.01)
        assert isinstance(too_many.error, Overloaded)
        assert all(caller.error is None for caller in waiting)
        await asyncio.sleep(2.0)  # nobody works, so that nobody lets go
        assert all(isinstance(caller.error, Overloaded) for caller in waiting)
        await world.all_ended()
        assert all(caller.error is None for caller in holders)

    simulated(body, timeout=1.0, waiting=3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", list(DOUBLES))
def test_a_death_fails_what_was_inside_and_heals(name: str, seed: int) -> None:
    """One clear error for the replies inside; the others and the next ones are well; the stage is started again."""

    async def body(world: World) -> None:
        first = world.ask()
        await world.step(world.rng.randint(0, 60))
        stage = world.stages[name]
        inside = first.finished is None
        stage.die()
        await world.all_ended()
        if first.error is not None:
            assert isinstance(first.error, StageFailed)
            assert first.error.stage == name
            assert name in str(first.error)
            assert inside
        assert not world.cascade.ready
        refused = world.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(refused.error, NotReady)
        assert name in str(refused.error)
        await world.run_until(lambda: world.cascade.ready)
        assert stage.starts == 2
        again = world.ask()
        await world.all_ended()
        assert again.error is None

    simulated(body, seed)


@pytest.mark.parametrize("name", ["talker", "voicebox"])
def test_text_is_served_while_a_stage_of_speech_is_down(name: str) -> None:
    async def body(world: World) -> None:
        texts = [world.ask(audio=False) for _ in range(3)]
        await world.step(5)
        world.stages[name].die()
        await world.step(20)
        texts.append(world.ask(audio=False))
        assert not world.cascade.ready
        await world.all_ended()
        assert all(caller.error is None for caller in texts)

    simulated(body)


def test_a_host_that_lets_go_too_early_fails_the_reply() -> None:
    """The engine core of a stage dies: its host says Released, without an end before, and follows. No caller hangs."""

    async def body(world: World) -> None:
        caller = world.ask()
        thinker = world.stages["thinker"]
        assert isinstance(thinker, ThinkerDouble)
        for _ in range(1000):
            if thinker.break_off():
                break
            await world.step()
        await world.all_ended()
        assert isinstance(caller.error, StageFailed)
        assert caller.error.stage == "thinker"

    simulated(body)


def test_a_sound_that_waits_while_the_thinker_dies_is_told() -> None:
    """Both bays are taken, a third sound waits for one, and the thinker dies: no caller waits for ever."""

    async def body(world: World) -> None:
        hearing = [asyncio.create_task(world.cascade.transcribe(np.zeros(10, np.float32))) for _ in range(4)]
        await asyncio.sleep(0)
        assert world.cascade.hearing.bays.waiting == 2
        world.stages["thinker"].die()
        for task in hearing:
            with pytest.raises(StageFailed) as error:
                await asyncio.wait_for(task, 30)
            assert error.value.stage == "thinker"

    simulated(body)


def test_a_transcription_may_be_given_up() -> None:
    async def body(world: World) -> None:
        task = asyncio.create_task(world.cascade.transcribe(np.zeros(10, np.float32)))
        await world.step(world.rng.randint(0, 3))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(transcribed(world, 20), 30) == "20"

    for seed in range(10):
        simulated(body, seed)


async def transcribed(world: World, samples: int) -> str:
    task = asyncio.create_task(world.cascade.transcribe(np.zeros(samples, np.float32)))
    await world.run_until(task.done)
    return await task


def test_a_cancelled_reply_ends_at_once_and_stops_every_stage() -> None:
    async def body(world: World) -> None:
        caller = world.ask()
        await world.run_until(lambda: bool(caller.events))
        if caller.finished is not None:
            return  # a reply without a word
        caller.response.cancel()
        caller.response.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert caller.finished is not None
        assert caller.finished.reason is FinishReason.CANCELLED
        await world.rest()
        for name in ("thinker", "talker"):
            messages = [m for m in world.stages[name].log if getattr(m, "id", None) == caller.response.number]
            assert isinstance(messages[0], Generate | Speak)

    for seed in range(10):
        simulated(body, seed)


def test_a_cancelled_slot_rests_until_its_worker_has_let_go() -> None:
    async def body(world: World) -> None:
        caller = world.ask()
        thinker = world.stages["thinker"]
        await world.run_until(lambda: bool(thinker.touched))
        caller.response.cancel()
        stages = world.stages.values()
        for _ in range(300):  # no acknowledgement yet
            for stage in stages:
                while stage.inbox:
                    stage.take(stage.inbox.popleft())
                for work in list(stage.work.values()):
                    stage.go_on(work)
                while stage.outbox:
                    stage.deliver()
            await asyncio.sleep(0.001)
        assert not world.cascade._states
        assert world.cascade.leases.free == 1
        await world.rest()

    simulated(body)


def test_an_abort_is_sent_to_stages_that_hold_the_reply() -> None:
    async def body(world: World) -> None:
        caller = world.ask()
        await asyncio.sleep(0.01)
        caller.response.cancel()
        sent = [m for name in ("thinker", "talker") for m in world.stages[name].inbox if isinstance(m, Abort)]
        assert sent == [Abort(caller.response.number)] * 2

    simulated(body)


def test_text_goes_to_the_talker_as_it_comes() -> None:
    async def body(world: World) -> None:
        caller = world.ask()
        await world.all_ended()
        texts = [m for m in world.stages["talker"].log if isinstance(m, Text) and m.id == caller.response.number]
        assert [m.final for m in texts] == [False] * (len(texts) - 1) + [True]
        assert "".join(piece for m in texts for piece in m.pieces) == caller.text

    simulated(body)


def test_a_fault_in_the_server_ends_one_reply_not_the_stage(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        caller = world.ask()
        await asyncio.sleep(0.01)
        world.stages["talker"]._on_message(Codes(caller.response.number, ("not a code",), 5))  # type: ignore[arg-type]
        await world.all_ended()
        assert isinstance(caller.error, CascadeError)
        assert "error while processing" in str(caller.error)
        again = world.ask()
        await world.all_ended()
        assert again.error is None

    simulated(body)
    assert "handling Codes" in caplog.text


def test_messages_of_strangers_are_ignored() -> None:
    async def body(world: World) -> None:
        for message in (Released(999, 0), Piece(999, ("x",), 0), Codes(999, (1,)), Speak(999, 0, 0, "ann")):
            for stage in world.stages.values():
                stage._on_message(message)

    simulated(body)


def test_a_stage_that_cannot_start_ends_the_start() -> None:
    """The others are stopped, the pool is gone, and stopping once more does no harm."""

    async def run(rng: random.Random) -> None:
        world = World(rng)

        async def broken() -> None:
            raise RuntimeError("no such model")

        world.stages["talker"].start = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="no such model"):
            await world.cascade.start()
        assert not any(stage.alive for stage in world.stages.values())
        assert not world.cascade.ready
        await world.cascade.stop()

    in_jumping_time(run, 0)


def test_not_ready_before_warm_up() -> None:
    async def run(rng: random.Random) -> None:
        world = World(rng)
        caller = world.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(caller.error, NotReady)
        caller.response.cancel()
        assert world.cascade.stage_states() == dict.fromkeys(DOUBLES, "down")
        with pytest.raises(NotReady):
            await world.cascade.transcribe(np.zeros(10, np.float32))
        starting = asyncio.create_task(world.cascade.start())
        await asyncio.sleep(0.1)
        assert world.cascade.stage_states() == dict.fromkeys(DOUBLES, "starting")
        await world.run_until(starting.done)
        assert world.cascade.stage_states() == dict.fromkeys(DOUBLES, "up")
        assert world.cascade.ready
        await world.cascade.stop()
        assert not world.cascade.ready

    in_jumping_time(run, 0)


def test_stop_ends_what_runs() -> None:
    async def run(rng: random.Random) -> None:
        world = World(rng)
        await world.start()
        caller = world.ask()
        await world.step(10)
        await world.cascade.stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert caller.finished is not None

    in_jumping_time(run, 3)
