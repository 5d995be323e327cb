"""A loop whose clock jumps."""

from __future__ import annotations

import asyncio
import time

import pytest

from voicechat.bench import virtual_time


async def sleeper(name: str, seconds: float, log: list[tuple[str, float]]) -> None:
    await asyncio.sleep(seconds)
    log.append((name, asyncio.get_running_loop().time()))


def test_an_hour_is_over_at_once_and_in_order() -> None:
    async def work() -> list[tuple[str, float]]:
        log: list[tuple[str, float]] = []
        await asyncio.gather(sleeper("late", 3600.0, log), sleeper("early", 0.5, log), sleeper("middle", 60.0, log))
        return log

    begun = time.process_time()
    assert virtual_time.run(work()) == [("early", 0.5), ("middle", 60.0), ("late", 3600.0)]
    assert time.process_time() - begun < 60


def test_timeouts_are_of_the_simulated_clock() -> None:
    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(work()) == pytest.approx(5.0)


def test_who_waits_for_nothing_is_told() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing is left"):
        virtual_time.run(work())
