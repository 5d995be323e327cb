"""The coordinator when things go wrong: full pools, cancelled replies, stages that die or do not start."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from tests.cascade.doubles import DOUBLES, ThinkerDouble
from tests.cascade.world import World, in_jumping_time, simulated, transcribed
from voicechat.cascade.revival import MOST_CRASHES
from voicechat.contract.errors import CascadeError, NotReady, Overloaded, StageFailed
from voicechat.contract.events import FinishReason
from voicechat.contract.messages import Abort, Codes, Generate, Piece, Released, Speak


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


@pytest.mark.parametrize("seed", range(10))
def test_sound_that_is_withheld_fails_its_reply_alone(seed: int) -> None:
    """One clear error for the one reply; its place goes to the next, and the others are heard to their ends."""

    async def body(world: World) -> None:
        callers = [world.speak("one two three four five six seven eight") for _ in range(4)]
        voicebox = world.stages["voicebox"]
        voicebox.withhold = 1  # type: ignore[attr-defined]
        await world.all_ended()
        failed = [caller for caller in callers if caller.error is not None]
        assert len(failed) == 1 and isinstance(failed[0].error, StageFailed)
        assert str(failed[0].error) == "The sound is withheld." and failed[0].error.stage == "voicebox"
        assert all(caller.finished is not None for caller in callers if caller is not failed[0])

    simulated(body, seed)


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


@pytest.mark.parametrize("name", ["thinker", "talker"])
def test_a_dead_stages_slot_is_used_again_when_no_process_of_it_is_left(name: str) -> None:
    async def body(world: World) -> None:
        stage, leases = world.stages[name], world.cascade.leases
        caller = world.ask()
        await world.run_until(lambda: caller.response.number in stage.work)
        stage.buried = False
        stage.die()
        await world.all_ended()
        assert isinstance(caller.error, StageFailed)
        await world.run_until(lambda: world.cascade.ready)
        await asyncio.sleep(60)
        assert leases.free == leases.total - 1, "something of it may still write into the slot"
        stage.buried = True
        await asyncio.sleep(1)
        assert leases.free == leases.total

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
        assert not world.cascade.traffic.states
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


def test_a_fault_in_the_server_ends_one_reply_not_the_stage(caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        caller = world.ask()
        await asyncio.sleep(0.01)
        world.stages["talker"]._on_message(Codes(caller.response.number, b"odd"))
        await world.all_ended()
        assert isinstance(caller.error, CascadeError)
        assert "error while processing" in str(caller.error)
        again = world.ask()
        await world.all_ended()
        assert again.error is None

    simulated(body)
    assert "handling Codes failed" in caplog.text


def test_messages_of_strangers_are_ignored() -> None:
    async def body(world: World) -> None:
        for message in (Released(999, 0), Piece(999, ("x",), 0), Codes(999, bytes(2)), Speak(999, 0, 0, 0)):
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


@pytest.mark.parametrize("name", list(DOUBLES))
def test_a_patient_turn_waits_for_a_stage_and_runs(name: str) -> None:
    """Others are refused at once meanwhile."""

    async def body(world: World) -> None:
        world.stages[name].die()
        await asyncio.sleep(0.02)
        patient, other = world.ask(patience=30.0), world.ask()
        await asyncio.sleep(0.01)
        assert isinstance(other.error, NotReady)
        assert patient.error is None
        await world.all_ended()
        assert patient.error is None
        assert patient.finished is not None and patient.finished.reason in (FinishReason.STOP, FinishReason.LENGTH)

    simulated(body)


def test_patience_has_an_end() -> None:
    async def run(rng: random.Random) -> None:
        world = World(rng)
        await world.start()
        world.stages["talker"].start = never  # type: ignore[method-assign]
        world.stages["talker"].die()
        await asyncio.sleep(0.02)
        patient = world.ask(patience=7.0)
        await asyncio.sleep(6.5)
        assert patient.error is None
        await asyncio.sleep(1.0)
        assert isinstance(patient.error, NotReady)
        assert not world.cascade.traffic.states
        await world.cascade.stop()

    async def never() -> None:
        await asyncio.Event().wait()

    in_jumping_time(run, 1)


def test_a_crash_loop_ends_with_a_diagnosis() -> None:
    """The stage comes up and dies again before it has worked: with growing pauses, and not for ever."""

    async def run(rng: random.Random) -> None:
        world = World(rng)
        await world.start()
        talker, loop = world.stages["talker"], asyncio.get_running_loop()
        talker.worked, talker.diagnosis, talker.last_words = False, "exit code 1: no such file", ("Traceback", "last")
        began = loop.time()
        for _ in range(MOST_CRASHES):
            talker.die()
            while not talker.up:  # noqa: ASYNC110 - in time that jumps
                await asyncio.sleep(0.1)
            assert world.cascade.revival.given_up == {}
        assert loop.time() - began > 0.5 + 1 + 2 + 4 + 8, "with growing pauses"
        starts = talker.starts
        patient = world.ask(patience=30.0)
        talker.die()
        await world.all_ended()
        assert patient.error is not None
        await asyncio.sleep(200.0)
        assert talker.starts == starts, "it is left alone"
        assert "exit code 1: no such file" in world.cascade.stage_states()["talker"]
        assert world.cascade.stats()["ends"]["talker"]["stderr"] == ["Traceback", "last"]
        assert isinstance(await outcome(world), NotReady), "at once, also to the patient"
        await world.cascade.stop()

    async def outcome(world: World) -> CascadeError | None:
        caller = world.ask(patience=30.0)
        await asyncio.sleep(0.01)
        return caller.error

    in_jumping_time(run, 2)


def test_a_stage_that_works_between_its_deaths_comes_back_every_time() -> None:
    async def body(world: World) -> None:
        for _ in range(3 * MOST_CRASHES):
            world.stages["voicebox"].die()
            await world.run_until(lambda: world.cascade.ready)
        assert world.cascade.restarts["voicebox"] == 3 * MOST_CRASHES

    simulated(body)


def test_what_is_broken_off_has_an_error_each() -> None:
    async def body(world: World) -> None:
        callers = [world.ask() for _ in range(4)]
        await world.step(10)
        world.cascade.break_off()
        await world.all_ended()
        assert all(isinstance(caller.error, NotReady) or caller.finished for caller in callers)
        assert any(isinstance(caller.error, NotReady) for caller in callers)

    simulated(body)
