"""Many sessions' work does not keep the event loop from everything else."""

from __future__ import annotations

import asyncio
import time

from voicechat.faces.realtime_share import LoopShare

WORK_S = 0.003


def work() -> None:
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass


async def test_work_that_comes_at_once_is_done_bit_by_bit_and_in_order() -> None:
    """With more work in one piece than the budget allows, each turn of the loop does one piece."""
    share, order, between = LoopShare(0.001), list[int](), list[int]()

    async def session(number: int) -> None:
        for _ in range(3):
            await share.turn()
            order.append(number)
            work()

    async def others() -> None:
        while True:
            between.append(len(order))
            await asyncio.sleep(0)

    watching = asyncio.create_task(others())
    async with asyncio.timeout(60):
        await asyncio.gather(*(session(number) for number in range(20)))
    watching.cancel()
    assert order == [0, *range(20), *range(20), *range(1, 20)], "as they asked: the first did so again at once"
    assert max(after - before for before, after in zip(between, between[1:], strict=False)) == 1


async def test_little_work_is_done_at_once() -> None:
    share, turns = LoopShare(60.0), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def session() -> None:
        for _ in range(50):
            await share.turn()

    watching = asyncio.create_task(others())
    await asyncio.gather(*(session() for _ in range(20)))
    watching.cancel()
    assert turns < 5, "nobody had to wait"


async def test_one_that_waits_may_be_cancelled() -> None:
    share, done = LoopShare(0.001), list[int]()

    async def session(number: int) -> None:
        await share.turn()
        done.append(number)
        work()

    tasks = [asyncio.create_task(session(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [0, 2, 3]


async def test_work_that_becomes_longer_is_still_done_bit_by_bit() -> None:
    """By the short pieces before it many would fit; those that were called in vain keep their places."""
    share, order, between = LoopShare(0.002), list[int](), list[int]()

    async def short() -> None:
        await share.turn()

    async def long(number: int) -> None:
        await share.turn()
        order.append(number)
        work()

    async def others() -> None:
        while True:
            between.append(len(order))
            await asyncio.sleep(0)

    watching = asyncio.create_task(others())
    async with asyncio.timeout(60):
        for _ in range(10):
            await asyncio.gather(long(-1), *(short() for _ in range(200)))
        order.clear()
        await asyncio.gather(*(short() for _ in range(100)), *(long(number) for number in range(20)))
    watching.cancel()
    assert order == [*range(20)]
    assert max(after - before for before, after in zip(between, between[1:], strict=False)) == 1
