"""Leases: whoever comes, goes, gives up or lets go late, no slot is lost and none has two holders."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from voicechat.cascade.leases import Lease, Leases
from voicechat.contract.errors import Overloaded

SLOTS = 3
WAITING = 4
POLL = 0.0001


@dataclass
class Worker:
    """Says whether a slot may be used again."""

    quiet: bool = False
    asked: int = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.quiet


@dataclass
class Held:
    lease: Lease
    worker: Worker = field(default_factory=Worker)


class LeaseMachine(RuleBasedStateMachine):
    """Any order of asking, giving up, ending and acknowledging, each followed by some turns of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.leases = Leases(SLOTS, max_waiting=WAITING, poll=POLL)
        self.asking: list[asyncio.Task[Lease]] = []
        self.held: list[Held] = []
        self.resting: list[Held] = []
        self.generations: set[int] = set()

    def turn(self, seconds: float = 0.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.collect()

    def collect(self) -> None:
        """Take the leases that were granted. They come in the order in which they were asked for."""
        still = []
        for task in self.asking:
            if not task.done():
                still.append(task)
                continue
            assert not still, "a later request was served before an earlier one"
            lease = task.result()
            assert lease.generation > max(self.generations, default=0)
            self.generations.add(lease.generation)
            self.held.append(Held(lease))
        self.asking = still

    @rule(turns=st.integers(0, 3))
    def ask(self, turns: int) -> None:
        task = self.loop.create_task(self.leases.acquire(60))
        self.turn()
        if task.done() and task.exception() is not None:
            assert isinstance(task.exception(), Overloaded)
            assert len(self.asking) == WAITING
            return
        self.asking.append(task)
        for _ in range(turns):
            self.turn()
        self.collect()

    @precondition(lambda self: self.asking)
    @rule(data=st.data(), release_first=st.booleans())
    def give_up(self, data: st.DataObject, release_first: bool) -> None:
        """A waiting request is cancelled; now and then in the very turn in which a slot is given to it."""
        task = data.draw(st.sampled_from(self.asking))
        if release_first and self.held:
            held = self.held.pop(0)
            held.worker.quiet = True
            self.leases.release(held.lease, held.worker)
        task.cancel()
        self.asking.remove(task)
        self.loop.run_until_complete(asyncio.wait({task}))
        assert task.cancelled()
        self.turn()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), quiet=st.booleans(), turns=st.integers(0, 2))
    def end(self, data: st.DataObject, quiet: bool, turns: int) -> None:
        held = data.draw(st.sampled_from(self.held))
        self.held.remove(held)
        held.worker.quiet = quiet

        async def release() -> None:
            self.leases.release(held.lease, held.worker)

        self.loop.run_until_complete(release())
        if not quiet:
            self.resting.append(held)
        for _ in range(turns):
            self.turn()
        self.collect()

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.resting))
        self.resting.remove(held)
        held.worker.quiet = True
        self.turn(5 * POLL)
        self.turn(5 * POLL)

    @invariant()
    def no_slot_has_two_holders(self) -> None:
        used = [held.lease.slot for held in self.held + self.resting]
        assert len(used) == len(set(used))
        assert set(used) <= set(range(SLOTS))

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        self.turn(5 * POLL)
        assert not (self.leases.free and self.leases.waiting)
        assert self.leases.waiting == len(self.asking)
        assert self.leases.free == SLOTS - len(self.held) - len(self.resting)

    def teardown(self) -> None:
        for held in self.held:
            held.worker.quiet = True
            self.leases.release(held.lease, held.worker)
        for held in self.resting:
            held.worker.quiet = True
        self.held, self.resting = [], []
        for _ in range(SLOTS + WAITING + 2):
            self.turn(5 * POLL)
            for held in self.held:
                held.worker.quiet = True
                self.leases.release(held.lease, held.worker)
            self.held = []
        assert (self.leases.free, self.leases.waiting) == (SLOTS, 0)
        self.loop.close()


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


async def test_waiting_is_bounded_in_time() -> None:
    leases = Leases(1, max_waiting=4)
    held = await leases.acquire(1)
    with pytest.raises(Overloaded, match=r"no place became free within 0\.02 s"):
        await leases.acquire(0.02)
    assert leases.waiting == 0
    leases.release(held, lambda: True)
    assert leases.free == 1


async def test_waiting_is_bounded_in_number() -> None:
    leases = Leases(1, max_waiting=2)
    await leases.acquire(1)
    waiting = [asyncio.create_task(leases.acquire(60)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many"):
        await leases.acquire(60)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert leases.waiting == 0


async def test_no_waiting_at_all() -> None:
    leases = Leases(1, max_waiting=0)
    await leases.acquire(0)
    with pytest.raises(Overloaded):
        await leases.acquire(0)


async def test_a_slot_given_in_the_moment_of_giving_up_is_not_lost() -> None:
    leases = Leases(1, max_waiting=2)
    held = await leases.acquire(1)
    first, second = (asyncio.create_task(leases.acquire(60)) for _ in range(2))
    await asyncio.sleep(0)
    leases.release(held, lambda: True)  # the first has it, but does not know yet
    first.cancel()
    assert (await second).slot == held.slot
    assert first.cancelled()


async def test_time_runs_out_in_the_moment_of_giving() -> None:
    """Whichever comes first, the slot goes on to the next."""
    for step in range(40):
        leases = Leases(1, max_waiting=2)
        held = await leases.acquire(1)
        first = asyncio.create_task(leases.acquire(0.002))
        second = asyncio.create_task(leases.acquire(60))
        await asyncio.sleep(0.0015 + step * 0.00003)
        leases.release(held, lambda: True)
        try:
            leases.release(await first, lambda: True)
        except Overloaded:
            pass
        leases.release(await second, lambda: True)
        assert (leases.free, leases.waiting) == (1, 0)


async def test_quarantine_holds_a_slot_back() -> None:
    leases = Leases(1, max_waiting=2, poll=0.001)
    worker = Worker()
    leases.release(await leases.acquire(1), worker)
    waiting = asyncio.create_task(leases.acquire(60))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    assert leases.free == 0
    worker.quiet = True
    assert (await waiting).slot == 0
    asked = worker.asked
    await asyncio.sleep(0.02)
    assert worker.asked == asked, "nothing is polled once nothing is in quarantine"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_who_would_wait_in_vain_is_told_at_once() -> None:
    """Slots were held for 4 s each: the third in the queue of two slots would wait about 8 s."""
    clock = Clock()
    leases = Leases(2, max_waiting=64, clock=clock)
    for _ in range(2):
        lease = await leases.acquire(0.0)
        clock.now += 4.0
        leases.release(lease, lambda: True)
    assert leases.expected_wait() == 0.0
    held = [await leases.acquire(0.0), await leases.acquire(0.0)]
    assert leases.expected_wait() == pytest.approx(4.0)
    waiting = [asyncio.create_task(leases.acquire(6.5, predict=True)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await leases.acquire(6.5, predict=True)
    assert refused.value.retry_after == pytest.approx(8.0)
    assert leases.waiting == 2, "those before it wait on"
    patient = asyncio.create_task(leases.acquire(6.5))
    await asyncio.sleep(0)
    assert leases.waiting == 3, "who does not ask for a forecast waits like them"
    for lease in held:
        leases.release(lease, lambda: True)
    for lease in [await task for task in waiting]:
        leases.release(lease, lambda: True)
    await patient


async def test_slow_replies_are_seen_before_they_end() -> None:
    clock = Clock()
    leases = Leases(1, max_waiting=64, clock=clock)
    leases.release(await leases.acquire(0.0), lambda: True)
    await leases.acquire(0.0)
    clock.now += 20.0
    assert leases.expected_wait() == pytest.approx(5.0)
