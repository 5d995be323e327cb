"""Stages that are killed in the middle of a reply: one clear error for it, no slot lost, and the stage comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cascade.conftest import PATIENCE, Reply, at_rest, read, request
from tests.cascade.listening import SPEAKERS
from tests.real_server import descendants, wait_until_gone
from voicechat.cascade.coordinator import Coordinator
from voicechat.cascade.stage import Stage
from voicechat.contract.errors import NotReady, StageFailed
from voicechat.contract.events import AudioDelta, TextDelta
from voicechat.contract.requests import Sampling

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = "What is the capital of France?"
LONG = "Tell me a story about a dog who went to the sea. Use at least five sentences."
TOLD_WITHIN = 2.0
"""Seconds after which the caller of a killed stage has its error: a bound on hanging."""


def host(cascade: Coordinator, stage: str) -> int:
    """Process id of a stage's host."""
    pid = cascade.stages[stage].pid
    assert pid is not None
    return pid


def engine_core(cascade: Coordinator, stage: str) -> int:
    """Process id of the engine core that a stage's host has started."""
    for pid in descendants(host(cascade, stage)):
        if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/comm").read_text():
            return pid
    raise AssertionError(f"the {stage} stage has no engine core")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "this does not come"
        await asyncio.sleep(0.05)


async def healed(cascade: Coordinator) -> None:
    """The pool is full again, the stage comes back by itself, and the next reply is right."""
    await at_rest(cascade)
    await until(lambda: cascade.ready)
    assert set(cascade.stage_states().values()) == {"up"}
    reply = await read(cascade.respond(request(QUESTION)))
    assert "Paris" in reply.text
    assert len(reply.pcm) > 12_000
    await at_rest(cascade)


async def read_until(response: object, kind: type) -> Reply:
    """Read a response up to its first event of a kind; the rest can be read on."""
    reply = Reply()
    async with asyncio.timeout(PATIENCE):
        async for event in response:  # type: ignore[attr-defined]
            reply.events.append(event)
            if isinstance(event, kind):
                return reply
    raise AssertionError(f"no {kind.__name__} came")


@pytest.mark.parametrize(
    ("stage", "victim", "moment"),
    [
        ("thinker", host, TextDelta),
        ("thinker", engine_core, AudioDelta),
        ("talker", host, AudioDelta),
        ("talker", engine_core, AudioDelta),
        ("voicebox", host, AudioDelta),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_stage_killed_in_the_middle_of_a_reply(
    coordinator: Coordinator, stage: str, victim: Callable[[Coordinator, str], int], moment: type
) -> None:
    await until(lambda: coordinator.ready)
    long = request(LONG, sampling=Sampling(temperature=0.0, seed=1, max_tokens=150))
    responses = [coordinator.respond(long) for _ in range(2)]
    for response in responses:
        await read_until(response, moment)
    group = {host(coordinator, stage), *descendants(host(coordinator, stage))}
    os.kill(victim(coordinator, stage), signal.SIGKILL)
    for response in responses:
        with pytest.raises(StageFailed) as error:
            async with asyncio.timeout(TOLD_WITHIN):
                async for _ in response:
                    pass
        assert error.value.stage == stage
        assert stage in str(error.value)
        assert response._events.empty(), "one error, and nothing after it"
    await until(lambda: not coordinator.ready)
    with pytest.raises(NotReady, match=stage):
        await read(coordinator.respond(request(QUESTION)))
    assert not wait_until_gone(group, 10), "the whole stage is gone"
    await healed(coordinator)


async def test_a_thinker_killed_while_it_listens(coordinator: Coordinator) -> None:
    await until(lambda: coordinator.ready)
    sound = SPEAKERS["teacher"](QUESTION)
    response = coordinator.respond(request(*[sound] * 8))
    await asyncio.sleep(0.05)
    os.kill(host(coordinator, "thinker"), signal.SIGKILL)
    with pytest.raises(StageFailed) as error:
        async with asyncio.timeout(TOLD_WITHIN):
            async for _ in response:
                pass
    assert error.value.stage == "thinker"
    await healed(coordinator)


async def test_an_engine_core_killed_while_nothing_runs(coordinator: Coordinator) -> None:
    """Nobody is inside to meet the fault: the stage notices by itself, before the next caller does."""
    await until(lambda: coordinator.ready)
    await at_rest(coordinator)
    os.kill(engine_core(coordinator, "talker"), signal.SIGKILL)
    await until(lambda: not coordinator.ready)
    await healed(coordinator)


@pytest.mark.parametrize(("stage", "victim"), [("talker", engine_core), ("voicebox", host)])
async def test_a_stage_that_hangs_in_the_middle_of_a_reply(
    coordinator: Coordinator, stage: str, victim: Callable[[Coordinator, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, not dead; of the Talker only the engine, whose host is well."""
    await until(lambda: coordinator.ready)
    watched = coordinator.stages[stage]
    assert isinstance(watched, Stage)
    monkeypatch.setattr(watched, "_ping_period", 0.2)
    monkeypatch.setattr(watched, "_max_unanswered", 20)
    response = coordinator.respond(request(LONG, sampling=Sampling(temperature=0.0, seed=1, max_tokens=150)))
    await read_until(response, AudioDelta)
    os.kill(victim(coordinator, stage), signal.SIGSTOP)
    with pytest.raises(StageFailed, match="hung") as error:
        async with asyncio.timeout(PATIENCE):
            async for _ in response:
                pass
    assert error.value.stage == stage
    await healed(coordinator)
