"""Many sessions' work does not keep the event loop from everything else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from voicechat.faces.realtime_share import LoopShare

WORK_S = 0.003


async def session(share: LoopShare, done: list[int], number: int) -> None:
    """Waits for its turn, and then works."""
    await share.turn()
    done.append(number)
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass


@asynccontextmanager
async def watched(done: list[int]) -> AsyncIterator[list[int]]:
    """How many were done at each turn of the loop, for a minute at most."""
    counts = list[int]()

    async def others() -> None:
        while True:
            counts.append(len(done))
            await asyncio.sleep(0)

    watching = asyncio.create_task(others())
    try:
        async with asyncio.timeout(60):
            yield counts
    finally:
        watching.cancel()


def most_in_a_turn(counts: list[int]) -> int:
    return max(after - before for before, after in pairwise(counts))


async def test_work_that_comes_at_once_is_done_bit_by_bit_and_in_order() -> None:
    """With more work in one piece than the budget allows, each turn of the loop does one piece."""
    share, order = LoopShare(0.001), list[int]()

    async def thrice(number: int) -> None:
        for _ in range(3):
            await session(share, order, number)

    async with watched(order) as counts:
        await asyncio.gather(*(thrice(number) for number in range(20)))
    assert order == [0, *range(20), *range(20), *range(1, 20)], "as they asked: the first did so again at once"
    assert most_in_a_turn(counts) == 1


async def test_little_work_is_done_at_once() -> None:
    share = LoopShare(60.0)

    async def often() -> None:
        for _ in range(50):
            await share.turn()

    async with watched([]) as counts:
        await asyncio.gather(*(often() for _ in range(20)))
    assert len(counts) < 5, "nobody had to wait"


async def test_one_that_waits_may_be_cancelled() -> None:
    share, done = LoopShare(0.001), list[int]()
    tasks = [asyncio.create_task(session(share, done, number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [0, 2, 3]


async def test_work_that_becomes_longer_is_still_done_bit_by_bit() -> None:
    """By the short pieces before it many would fit; those that were called in vain keep their places."""
    share, order = LoopShare(0.002), list[int]()
    async with watched(order) as counts:
        for _ in range(10):
            await asyncio.gather(session(share, order, -1), *(share.turn() for _ in range(200)))
        order.clear()
        await asyncio.gather(*(share.turn() for _ in range(100)), *(session(share, order, n) for n in range(20)))
    assert order == [*range(20)]
    assert most_in_a_turn(counts) == 1


async def test_who_cannot_wait_is_told_whether_there_is_time() -> None:
    share = LoopShare(budget=0.002)
    assert share.take()
    end = time.perf_counter() + 0.003
    while time.perf_counter() < end:
        pass
    assert not share.take(), "the budget of this turn of the loop is spent"
    waiting = asyncio.ensure_future(share.turn())
    await waiting
    await asyncio.sleep(0.001)
    assert share.take()
