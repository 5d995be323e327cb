"""How a listener shares sounds out: which are heard together, given up, or fail; the ears are doubles."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from tests.stages.pools import small_pool
from voicechat.contract.hearing import EarsFacts, Transcription
from voicechat.contract.messages import Failed, Message, Transcribe, Transcript
from voicechat.contract.pool import Pool
from voicechat.stages import ears
from voicechat.stages.ears import EarsSpec, Job, Listener
from voicechat.stages.host import Host
from voicechat.stages.placement import Placement

pytestmark = pytest.mark.asyncio

BAYS = 8


class Slow:
    """Ears that hear when they are let; a sound's text is its first sample. A negative one is a fault."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.go = threading.Semaphore(0)
        self.lost = False

    facts = EarsFacts("slow", ("en",))

    def hear(self, jobs: Sequence[Job]) -> list[Transcription]:
        sounds = [sound for sound, _ in jobs]
        assert self.go.acquire(timeout=10)
        self.batches.append(len(sounds))
        if any(sound[0] < 0 for sound in sounds):
            raise RuntimeError("CUDA error: out of memory")
        return [Transcription(str(int(sound[0]))) for sound in sounds]

    def check(self) -> None:
        if self.lost:
            raise RuntimeError("the device is lost")


class Bench(Host):
    """Keeps what the listener sends."""

    def __init__(self, pool: Pool, spec: EarsSpec) -> None:
        self.sent: list[Message] = []
        self.news = asyncio.Event()
        super().__init__(self)  # type: ignore[arg-type]
        self.pool = pool
        self.listener = Listener(self, pool, spec)
        self.faults: list[BaseException] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)
        self.news.set()

    async def warm_up(self) -> dict[str, Any]:
        await self.listener.load()
        self.listener.start()
        return {}

    def handle(self, message: Message) -> None:
        raise NotImplementedError

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faults.append(error)
        self.news.set()

    def say(self, number: int, value: float | None = None) -> None:
        bay = number % BAYS
        self.pool.bays[bay, :4] = number if value is None else value
        self.listener.listen(Transcribe(number, bay, 4))
        self.pool.bays[bay, :4] = 0  # the bay is free again at once

    async def until(self, count: int, faults: int = 0) -> list[Message]:
        async with asyncio.timeout(10):
            while len(self.sent) < count or len(self.faults) < faults:
                self.news.clear()
                await self.news.wait()
        return self.sent


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow()
    monkeypatch.setattr(ears, "load_ears", lambda spec: made)
    return made


@pytest_asyncio.fixture
async def bench(slow: Slow) -> AsyncIterator[Bench]:
    """A listener on a GPU with batches of 4."""
    spec = small_pool(bays=BAYS, bay_samples=16)
    pool = Pool(spec, create=True)
    made = Bench(pool, EarsSpec(dir="none", threads=1, beam_size=1, workers=3, max_batch=4, place=Placement(gpu=0)))
    await made.warm_up()
    yield made
    for task in list(made._tasks):
        task.cancel()
    slow.go.release(100)
    made.listener.close()
    await asyncio.sleep(0.01)
    pool.close()


def texts(messages: Sequence[Message]) -> dict[int, str]:
    assert all(isinstance(message, Transcript) for message in messages)
    return {message.id: message.heard.text for message in messages if isinstance(message, Transcript)}


async def test_what_waits_is_heard_together(bench: Bench, slow: Slow) -> None:
    """The first alone, for nothing else is there; then as many as fit, in the order of their coming."""
    bench.say(1)
    await asyncio.sleep(0.01)
    for number in range(2, 8):
        bench.say(number)
    slow.go.release(3)
    sent = await bench.until(7)
    assert slow.batches == [1, 4, 2]
    assert texts(sent) == {number: str(number) for number in range(1, 8)}
    assert list(texts(sent)) == list(range(1, 8))
    assert all(isinstance(message, Transcript) and message.seconds > 0.005 for message in sent[:1])


async def test_given_up_while_it_waits(bench: Bench, slow: Slow) -> None:
    """It is not heard, and fails at once; what is being heard is heard to its end."""
    bench.say(1)
    await asyncio.sleep(0.01)
    bench.say(2)
    bench.say(3)
    bench.listener.abort(2)
    bench.listener.abort(1)
    bench.listener.abort(99)
    (failed,) = await bench.until(1)
    assert isinstance(failed, Failed)
    assert failed.id == 2
    slow.go.release(2)
    assert texts((await bench.until(3))[1:]) == {1: "1", 3: "3"}
    assert slow.batches == [1, 1]


async def test_a_fault_fails_its_batch_and_no_other(bench: Bench, slow: Slow) -> None:
    bench.say(1)
    await asyncio.sleep(0.01)
    bench.say(2)
    bench.say(3, -1)
    slow.go.release(2)
    first, *others = await bench.until(3)
    assert texts([first]) == {1: "1"}
    assert [other.id for other in others if isinstance(other, Failed)] == [2, 3]
    bench.say(4)
    slow.go.release(1)
    assert texts((await bench.until(4))[3:]) == {4: "4"}
    assert bench.faults == []


async def test_a_lost_device_is_the_end(bench: Bench, slow: Slow) -> None:
    """The sounds fail, and so does the task, which ends a real host's process."""
    slow.lost = True
    bench.say(1, -1)
    slow.go.release(1)
    (failed,) = await bench.until(1, faults=1)
    assert isinstance(failed, Failed)
    assert "lost" in str(bench.faults[0])


async def test_on_the_cpu_workers_hear_one_each(bench: Bench, slow: Slow) -> None:
    spec = EarsSpec(dir="none", threads=1, beam_size=1, workers=2, max_batch=16)
    other = Bench(bench.pool, spec)
    await other.warm_up()
    for number in range(1, 6):
        other.say(number)
    slow.go.release(5)
    assert texts(await other.until(5)).keys() == {1, 2, 3, 4, 5}
    assert slow.batches == [1] * 5
    for task in list(other._tasks):
        task.cancel()
    other.listener.close()
