"""The VoiceBox at the door: nothing of a reply is kept longer than the reply, and nothing gets past the mark."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio

import voicechat
from tests.stages.test_door import Turned
from voicechat.contract.family import Decoded
from voicechat.contract.messages import Abort, Decode, Failed, Message, Sound
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.sound import Pcm
from voicechat.stages.voicebox import VoiceBox, VoiceBoxConfig

STEP = 960
CONTEXT = 2


class Noise:
    """In the place of a decoder: each code is a level; waits for its gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[int]] = []

    def shape(self, chunk: Decode) -> int:
        return len(chunk.steps)

    def decode(self, batch: Sequence[Decode]) -> list[Decoded]:
        self.gate.wait(10)
        self.batches.append([message.id for message in batch])
        return [Decoded(np.repeat(np.frombuffer(message.steps, np.int16), STEP), b"s") for message in batch]


class Told:
    """In the place of the channel to the server."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.news = asyncio.Event()

    def send(self, message: Message) -> None:
        self.messages.append(message)
        self.news.set()


class Bench:
    """A VoiceBox in this process."""

    def __init__(self) -> None:
        spec = PoolSpec(
            name=PoolSpec.new_name(), slots=4, hidden_size=1, max_rows=1, max_text_rows=1, pcm_samples=40 * STEP + 7,
            bays=1, bay_samples=1,
        )  # fmt: skip
        self.pool = Pool(spec, create=True)
        self.told, self.decoder = Told(), Noise()
        config = VoiceBoxConfig(
            family="", model={}, pool=spec, max_batch=2, threads=1, shapes=(), log_level=30, patience=30
        )
        self.box = VoiceBox(self.told, config)  # type: ignore[arg-type]
        self.box._decoder = self.decoder  # type: ignore[assignment]
        self.box._make_marker = Turned
        self.box.spawn(self.box._work(), "work")

    def chunk(self, number: int, codes: list[int], at: int, *, last: bool = False) -> None:
        self.box.handle(
            Decode(number, number % 4, np.array(codes, np.int16).tobytes(), 0, len(codes), at * STEP, last=last)
        )

    async def until(self, count: int) -> Message:
        async with asyncio.timeout(10):
            while len(self.told.messages) < count:
                self.told.news.clear()
                await self.told.news.wait()
        return self.told.messages[count - 1]

    def heard(self, number: int) -> Pcm:
        sounds = [message for message in self.told.messages if isinstance(message, Sound) and message.id == number]
        return np.concatenate([self.pool.read_pcm(number % 4, sound.start, sound.count) for sound in sounds])


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    try:
        yield bench
        assert not bench.box._doors, "a door was left open"
        assert not bench.box._waiting
    finally:
        bench.decoder.gate.set()
        for task in list(bench.box._tasks):
            task.cancel()
        await bench.box.close()
        bench.pool.close()


@pytest.mark.parametrize("how", ["last", "empty"])
async def test_a_reply_comes_out_whole_and_marked(bench: Bench, how: str) -> None:
    bench.chunk(1, [1, 2, 3], 0)
    await bench.until(1)
    bench.chunk(1, [4, 5], 3, last=how == "last")
    await bench.until(2)
    if how == "empty":
        bench.chunk(1, [], 5, last=True)
        await bench.until(3)
    np.testing.assert_array_equal(bench.heard(1), -np.repeat([1, 2, 3, 4, 5], STEP))


async def test_replies_at_once_are_marked_each_on_its_own(bench: Bench) -> None:
    bench.decoder.gate.clear()
    for number in (1, 2, 3):
        bench.chunk(number, [10 * number] * 3, 0)
    bench.decoder.gate.set()
    await bench.until(3)
    for number in (1, 2, 3):
        bench.chunk(number, [10 * number + 1] * 2, 3, last=True)
    await bench.until(6)
    assert any(len(batch) == 2 for batch in bench.decoder.batches)
    for number in (1, 2, 3):
        np.testing.assert_array_equal(bench.heard(number), -np.repeat([10 * number] * 3 + [10 * number + 1] * 2, STEP))


async def test_nothing_is_kept_of_an_aborted_reply(bench: Bench) -> None:
    """Between two of its chunks, while one waits, is decoded, and while it is marked."""
    bench.chunk(1, [1, 2, 3], 0)
    await bench.until(1)
    bench.box.handle(Abort(1))
    assert not bench.box._doors
    bench.box.handle(Abort(1))  # an abort may cross the last sound

    bench.decoder.gate.clear()
    bench.chunk(2, [1, 2, 3], 0)
    await asyncio.sleep(0.01)
    bench.chunk(3, [1, 2, 3], 0)
    bench.box.handle(Abort(3))
    assert await bench.until(2) == Failed(3, "The reply was aborted.")
    bench.box.handle(Abort(2))
    bench.decoder.gate.set()
    assert await bench.until(3) == Failed(2, "The reply was aborted.")
    assert bench.decoder.batches == [[1], [2]], "what waited was not decoded for nothing"

    marking = threading.Event()

    class Waits(Turned):
        def push(self, pcm: Pcm) -> Pcm:
            marking.wait(5)
            return super().push(pcm)

    bench.box._make_marker = Waits
    bench.chunk(4, [1, 2, 3], 0)
    await asyncio.sleep(0.05)
    bench.box.handle(Abort(4))
    marking.set()
    assert await bench.until(4) == Failed(4, "The reply was aborted.")


async def test_a_later_chunk_of_an_unknown_reply_never_gets_out(bench: Bench) -> None:
    bench.chunk(1, [1, 2], 3)
    assert isinstance(await bench.until(1), Failed)


async def test_a_marker_that_raises_fails_its_reply_alone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Turned):
        def push(self, pcm: Pcm) -> Pcm:
            if pcm[0] == 7:
                raise ValueError("the mark has slipped")
            return super().push(pcm)

    bench.box._make_marker = Broken
    bench.chunk(1, [1, 2, 3], 0)
    await bench.until(1)
    bench.chunk(2, [1, 2, 3], 0)
    await bench.until(2)
    bench.chunk(1, [7, 7], 3)
    failed = await bench.until(3)
    assert isinstance(failed, Failed) and "watermark" in failed.message and not failed.invalid
    assert "the mark has slipped" in caplog.text
    bench.chunk(2, [4], 3, last=True)
    await bench.until(4)
    np.testing.assert_array_equal(bench.heard(2), -np.repeat([1, 2, 3, 4], STEP))


async def test_a_marker_that_does_not_come_back_fails_the_reply(bench: Bench) -> None:
    stuck = threading.Event()

    class Stuck(Turned):
        def push(self, pcm: Pcm) -> Pcm:
            stuck.wait(10)
            return super().push(pcm)

    bench.box._make_marker = Stuck
    bench.box.config = msgspec.structs.replace(bench.box.config, patience=0.2)
    before = bench.pool.pcm.copy()
    bench.chunk(1, [1, 2, 3], 0)
    failed = await bench.until(1)
    assert isinstance(failed, Failed) and "keep up" in failed.message
    answer = asyncio.create_task(bench.box.answer())
    assert not (await asyncio.wait({answer}, timeout=0.1))[0], "a stage whose marker is stuck gives no sign of life"
    stuck.set()
    await answer
    np.testing.assert_array_equal(bench.pool.pcm, before)


def test_the_ring_has_one_writer() -> None:
    """Nobody but the VoiceBox writes sound into the pool, and it writes only what came through a door."""
    package = Path(voicechat.__file__).parent
    writes, assigned = [], []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "write_pcm":
                writes.append((where, ast.unparse(node.args[-1])))
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if isinstance(target, ast.Subscript) and ast.unparse(target.value).endswith(".pcm"):
                    assigned.append(where)
    assert writes == [("stages/voicebox.py", "heard")]
    assert assigned == ["contract/pool.py"]
    source = (package / "stages/voicebox.py").read_text(encoding="utf-8")
    makers = [
        ast.unparse(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "heard" for target in node.targets)
    ]
    assert makers == ["await through"]
