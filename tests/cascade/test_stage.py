"""How a stage's process is started, watched and ended: real processes, without models."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.cascade import small_stage
from tests.real_server import wait_until_gone
from voicechat.cascade.stage import PING_PERIOD, Stage, group_is_gone
from voicechat.contract.messages import Abort, Generate, Message, Piece, Released

PATIENCE = 30.0


class Watched:
    """A stage and what it told."""

    def __init__(self, target: Callable[..., None], *arguments: Any, **options: Any) -> None:
        self.messages: list[Message] = []
        self.deaths: list[str] = []
        self.stage = Stage(
            "small",
            target,
            arguments,
            on_message=self.messages.append,
            on_death=lambda _, how: self.deaths.append(how),
            **options,
        )

    async def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, "this does not come"
            await asyncio.sleep(0.01)

    @property
    def group(self) -> set[int]:
        return {int(self.stage.facts["pid"]), int(self.stage.facts["child"])}


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched(small_stage.run)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    yield made
    await asyncio.wait_for(made.stage.stop(), PATIENCE)


async def test_a_killed_stage_is_buried_when_its_whole_group_is_gone(watched: Watched) -> None:
    group = int(watched.stage.facts["pid"])
    assert watched.stage.buried and not group_is_gone(group)
    os.kill(group, signal.SIGKILL)
    await watched.until(lambda: bool(watched.deaths))
    await watched.until(lambda: watched.stage.buried)
    assert not wait_until_gone(watched.group, 0.0)


def test_a_group_is_there_while_one_of_it_runs() -> None:
    """Its leader is dead, and waits to be waited for; a child of it runs on."""
    leader = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"],
        stdout=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert not group_is_gone(leader.pid)
    os.kill(child, signal.SIGKILL)
    assert not wait_until_gone({child}, PATIENCE)
    assert group_is_gone(leader.pid), "its leader is a zombie, which writes nothing"
    leader.wait()
    assert group_is_gone(leader.pid)


async def test_a_stage_looks_at_itself(watched: Watched) -> None:
    found = await asyncio.wait_for(watched.stage.profile(0.05, 0.0), PATIENCE)
    assert found["engine"] is None
    assert {"wall_s", "cpu", "loop", "messages_per_s", "share", "calls"} == set(found["host"])
    assert watched.messages == []
    assert watched.deaths == []


async def test_a_look_that_fails_ends_nothing() -> None:
    made = Watched(small_stage.run_unseen)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    try:
        assert await asyncio.wait_for(made.stage.profile(0.05, 0.0), PATIENCE) == {"error": "not now"}
        assert made.stage.up
    finally:
        await asyncio.wait_for(made.stage.stop(), PATIENCE)


async def test_a_stage_that_is_well(watched: Watched) -> None:
    stage = watched.stage
    assert stage.up
    assert stage.alive
    assert stage.facts["pid"] == stage.pid
    assert stage.facts["group"] == stage.pid, "a group of its own"
    group = watched.group
    stage.send(Generate(1, (), False))
    await watched.until(lambda: bool(watched.messages))
    assert watched.messages == [Piece(1, (str(stage.pid),), 0)]
    await stage.stop()
    assert not stage.up
    assert not stage.alive
    assert watched.deaths == [], "an end that was asked for is no death"
    assert not wait_until_gone(group, 5)
    stage.send(Generate(2, (), False))  # to nobody


async def test_an_abort_in_one_write_with_its_request_is_answered(watched: Watched) -> None:
    """The task is cancelled before its first step, and lets go all the same."""
    for number in range(1, 20):
        watched.stage.send(Generate(number, (), False))
        watched.stage.send(Abort(number))
    await watched.until(lambda: sum(isinstance(message, Released) for message in watched.messages) == 19)
    assert watched.stage.up


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_a_killed_stage_is_reported_once(watched: Watched, sign: signal.Signals) -> None:
    """And what it had started goes with it."""
    group = watched.group
    assert watched.stage.pid is not None
    os.kill(watched.stage.pid, sign)
    await watched.until(lambda: bool(watched.deaths))
    assert watched.deaths == [f"signal {sign.name}"]
    assert not watched.stage.up
    assert not wait_until_gone(group, 5)
    await watched.stage.start()
    assert watched.stage.up
    assert watched.stage.facts["pid"] == watched.stage.pid
    assert not group & watched.group
    await asyncio.sleep(0.1)
    assert len(watched.deaths) == 1


async def test_a_fault_in_a_task_ends_the_stage(watched: Watched) -> None:
    """Nobody else would learn of it."""
    watched.stage.send(Generate(1, (), False, max_tokens=0))
    await watched.until(lambda: bool(watched.deaths))
    assert not wait_until_gone(watched.group, 5)


async def test_a_message_that_is_not_for_it_ends_the_stage(watched: Watched) -> None:
    watched.stage.send(Released(1, 2))
    await watched.until(lambda: bool(watched.deaths))
    assert not wait_until_gone(watched.group, 5)


async def test_ctrl_c_is_left_to_the_server(watched: Watched) -> None:
    assert watched.stage.pid is not None
    os.killpg(watched.stage.pid, signal.SIGINT)
    watched.stage.send(Generate(1, (), False))
    await watched.until(lambda: bool(watched.messages))
    assert watched.deaths == []


async def test_a_stage_that_cannot_start() -> None:
    made = Watched(small_stage.run_broken)
    with pytest.raises(RuntimeError, match="the small stage ended while starting"):
        await asyncio.wait_for(made.stage.start(), PATIENCE)
    assert not made.stage.up
    await made.stage.stop()


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3, 1.5])
@pytest.mark.parametrize("target", [small_stage.run, small_stage.run_slow_to_begin])
async def test_a_start_may_be_given_up_at_any_moment(target: Callable[..., None], delay: float) -> None:
    """Also while the process still imports and has no group of its own."""
    made = Watched(target, *([30.0] if target is small_stage.run else []))
    starting = asyncio.create_task(made.stage.start())
    await asyncio.sleep(delay)
    starting.cancel()
    await asyncio.wait({starting})
    pid = made.stage.pid
    await asyncio.wait_for(made.stage.stop(patience=1.0), PATIENCE)
    assert pid is None or not wait_until_gone({pid}, 5)
    assert made.deaths == []


def _supervise(pipe: Connection) -> None:
    small_stage.supervise(pipe.send)


async def test_a_stage_does_not_outlive_a_killed_server() -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_supervise, args=(theirs,))
    server.start()
    assert ours.poll(PATIENCE)
    pid = int(ours.recv()["pid"])
    server.kill()
    server.join()
    assert not wait_until_gone({pid}, 5)


async def test_a_stage_that_hangs_is_killed_and_reported() -> None:
    """It is stopped, not dead: nothing of it ends, and nothing comes."""
    made = Watched(small_stage.run, ping_period=0.05, max_unanswered=10)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    group = made.group
    await asyncio.sleep(1.0)
    assert made.stage.up, "it answers, so it stays"
    assert made.messages == [], "answers are not passed on"
    assert made.stage.pid is not None
    os.kill(made.stage.pid, signal.SIGSTOP)
    await made.until(lambda: bool(made.deaths))
    assert made.deaths == ["it hung and was killed"]
    assert not wait_until_gone(group, 5)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    await asyncio.sleep(1.0)
    assert made.stage.up
    assert len(made.deaths) == 1
    await made.stage.stop()


@pytest.mark.parametrize("victim", ["pid", "child"])
async def test_a_stopped_stage_is_found_within_seconds(victim: str) -> None:
    """With the periods that a server has; also if only its engine is stopped, and while no answer is owed."""
    made = Watched(small_stage.run)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    looks = 0
    original = made.stage._why_hung

    def counted(stopped: int, idle: int) -> str | None:
        nonlocal looks
        looks += bool(stopped)
        return original(stopped, idle)

    made.stage._why_hung = counted  # type: ignore[method-assign]
    await asyncio.sleep(1.2)
    os.kill(int(made.stage.facts[victim]), signal.SIGSTOP)
    await made.until(lambda: bool(made.deaths))
    assert made.stage.diagnosis == "it hung and was killed: a process of it is stopped"
    assert looks * PING_PERIOD <= 1.5
    assert not wait_until_gone(made.group, 5)


async def test_a_stage_that_waits_for_nothing_is_found() -> None:
    """Its event loop is locked for ever: no signal shows it, and no processor is used."""
    made = Watched(small_stage.run_locked)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    made.stage.send(Generate(1, (), False))
    await made.until(lambda: bool(made.deaths))
    assert made.stage.diagnosis == "it hung and was killed: it owes an answer, and does nothing"


async def test_a_stage_that_works_hard_is_not_taken_to_hang() -> None:
    """It answers nothing for a second of its own processor time, beside others who want the processors too."""
    made = Watched(small_stage.run_busy)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]  # noqa: ASYNC220
    try:
        made.stage.send(Generate(1, (), False))
        await made.until(lambda: bool(made.messages) or bool(made.deaths), 4 * PATIENCE)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        await made.stage.stop()
    assert made.deaths == []
    assert isinstance(made.messages[0], Piece)


async def test_what_a_stage_last_said_is_its_diagnosis() -> None:
    made = Watched(small_stage.run_broken)
    with pytest.raises(RuntimeError, match="exit code|SIGKILL"):
        await asyncio.wait_for(made.stage.start(), PATIENCE)
    assert made.stage.diagnosis is not None
    assert made.stage.diagnosis.endswith("it last said: FileNotFoundError: no such model")
    assert any("Traceback" in line for line in made.stage.last_words)
    await made.stage.stop()


async def test_whatever_a_stage_says_is_a_sign_of_life() -> None:
    """Its answers are lost, but it is at work."""
    made = Watched(small_stage.run_without_answers, ping_period=0.05, max_unanswered=20)
    await asyncio.wait_for(made.stage.start(), PATIENCE)
    for number in range(60):
        made.stage.send(Generate(number, (), False))
        await asyncio.sleep(0.05)
    assert made.stage.up
    await made.until(lambda: bool(made.deaths))
    await made.stage.stop()


def _supervised(pipe: Connection) -> None:
    small_stage.supervise_pinging(pipe)


async def test_a_pause_of_everything_is_no_hang() -> None:
    """Server and stage are stopped for longer than a hang would take to be found, and go on together."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_supervised, args=(theirs,))
    server.start()
    assert ours.poll(PATIENCE)
    group = [server.pid, *map(int, ours.recv())]
    for pid in group:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(3.0)
    for pid in reversed(group):
        assert pid is not None
        os.kill(pid, signal.SIGCONT)
    await asyncio.sleep(2.0)
    ours.send("are you well?")
    assert ours.poll(PATIENCE)
    assert ours.recv() == ("up", 0)
    server.kill()
    server.join()
