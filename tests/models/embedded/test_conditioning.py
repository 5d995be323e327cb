"""The conditioning on a device against the plain rule, position by position; on the CPU here, on CUDA with ``gpu``."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from voicechat.contract.family import Entry
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.conditioning import DeviceConditioning
from voicechat.models.embedded.talker import ADVANCES, BOS, LEFT, NONE_SYMBOL, RIGHT, SYMBOLS, Conditioner
from voicechat.stages.rows import CopiedRows, DeviceRowWriter, SharedRows, poison, rows_bytes, stamp, view_rows

SLOTS, ROWS, HIDDEN, WIDTH, VOICES, TEXT = 4, 16, 24, 32, 3, 64
BUFFER = 128
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def pool() -> Iterator[Pool]:
    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=SLOTS,
        hidden_size=HIDDEN,
        max_rows=ROWS,
        max_text_rows=TEXT,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
    )
    pool = Pool(spec, create=True)
    yield pool
    pool.close()


@dataclass
class Said:
    """A request as the reference sees it: every token it consumed so far."""

    slot: int
    base: int
    voice: int
    generation: int
    tokens: list[int] = field(default_factory=list)


class Bench:
    """A conditioning and its pool, and the rule in plain Python beside it."""

    def __init__(self, pool: Pool, device: str, *, shared: bool) -> None:
        torch.manual_seed(5)
        self.pool = pool
        self.device = torch.device(device)
        self.conditioner = Conditioner(WIDTH, VOICES, HIDDEN).eval().requires_grad_(False)
        self.rows = None
        if shared:
            self.rows = view_rows(torch.zeros(rows_bytes(pool.spec), dtype=torch.uint8, device=device), pool.spec)
            poison(self.rows)
        self.read = CopiedRows(pool, self.device) if self.rows is None else SharedRows(self.rows, pool.spec)
        self.on_device = DeviceConditioning(pool, copy.deepcopy(self.conditioner), self.read, self.device)
        self.ids = torch.zeros(BUFFER, dtype=torch.int32, device=device)
        self.embeddings = torch.zeros(BUFFER, WIDTH, device=device)
        self.rng = np.random.default_rng(3)
        self.generation = 0

    def begin(self, slot: int, base: int = 0) -> Said:
        self.generation += 1
        if base == 0:
            self.pool.begin(slot, self.generation)
        said = Said(slot, base, int(self.rng.integers(VOICES)), self.generation)
        self.on_device.begin(slot, said.generation, {"pointer": base, "voice": said.voice})
        return said

    @property
    def faults(self) -> int:
        return int(self.read.faults.item()) if isinstance(self.read, SharedRows) else 0

    def write(self, said: Said, first: int, end: int) -> None:
        """The Thinker's rows ``first`` to ``end`` of a reply."""
        hidden = torch.randn(end - first, HIDDEN, generator=torch.Generator().manual_seed(said.generation * 99 + first))
        bits = (3 * hidden).bfloat16()
        self.pool.hidden[said.slot, first:end] = bits.view(torch.uint16).numpy()
        if self.rows is not None:
            count = np.arange(end - first)
            target = said.slot * ROWS + first + count
            stamps = np.array([stamp(said.generation, row) for row in range(first, end)])
            DeviceRowWriter(self.rows).write(bits.to(self.device), count, target, stamps)

    def text(self, said: Said, count: int, *, rows: bool = True) -> None:
        pairs = [(int(self.rng.integers(SYMBOLS)), int(self.rng.integers(ROWS)) if rows else -1) for _ in range(count)]
        self.pool.append_text(said.slot, pairs, final=False)

    def expected(self, said: Said) -> torch.Tensor:
        """What is added at the position of the last of ``said.tokens``."""
        at = said.base + sum(token % ADVANCES for token in said.tokens if token < BOS)
        ready = int(self.pool.text_ready[said.slot])
        text = self.pool.text[said.slot]
        window = [
            int(text[place, 0]) if said.base <= place < ready else NONE_SYMBOL
            for place in range(at - LEFT, at + RIGHT + 1)
        ]
        row = int(text[min(at, max(ready - 1, 0)), 1])
        state = torch.from_numpy(self.pool.hidden[said.slot, max(row, 0)].copy()).view(torch.bfloat16).float()
        return self.conditioner(
            torch.tensor([window]), state[None], torch.tensor([row >= 0]), torch.tensor([said.voice])
        )[0]

    def step(self, *parts: tuple[Said | None, list[int], int | None]) -> None:
        """Run a batch: requests with the tokens that they consume now, and from which position on (None: go on)."""
        entries, tokens, wanted = [], [], []
        for said, new, start in parts:
            if said is None:
                entries.append(Entry(None, 0, len(new)))
                tokens += new
                wanted += [torch.zeros(WIDTH)] * len(new)
                continue
            if start is not None:
                del said.tokens[start:]
            entries.append(Entry(said.slot, len(said.tokens), len(new)))
            for token in new:
                said.tokens.append(token)
                wanted.append(self.expected(said))
            tokens += new
        self.ids[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        before = torch.randn(BUFFER, WIDTH)
        self.embeddings.copy_(before)
        self.on_device.step(entries, self.ids, self.embeddings)
        got = self.embeddings.cpu() - before
        torch.testing.assert_close(got[: len(tokens)], torch.stack(wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shared", [True, False])
def test_every_position_gets_its_row(pool: Pool, device: str, shared: bool) -> None:
    """Requests that come and go, alone and together, with text that grows, pieces of recomputed tokens, and padding."""
    bench = Bench(pool, device, shared=shared)
    rng = bench.rng
    a, b, c = (bench.begin(slot) for slot in (2, 0, 3))
    for said in (a, b, c):
        bench.write(said, 0, ROWS)
        bench.text(said, 20, rows=said is not c)
    bench.step((a, [BOS], 0))
    bench.step((b, [BOS], 0), (a, [4], None), (None, [7, 8], None))
    bench.step((a, [5], None), (c, [BOS], 0), (b, [3001], None))
    for _ in range(6):
        bench.text(a, 3)
        order = rng.permutation(3)
        bench.step(*(((a, b, c)[index], [int(rng.integers(BOS))], None) for index in order))
    again = list(b.tokens)
    bench.step((a, [2], None), (b, again[:4], 0))  # preempted, and read again in two pieces
    bench.step((b, again[4:], None), (c, [1], None))
    bench.step((b, [11], None), (a, [8], None))
    d = bench.begin(2)  # the slot's next reply sees nothing of the last
    bench.write(d, 0, ROWS)
    bench.text(d, 6)
    bench.step((b, [12], None), (d, [BOS], 0))
    assert bench.faults == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_that_begins_in_the_middle(pool: Pool, device: str) -> None:
    bench = Bench(pool, device, shared=False)
    first = bench.begin(1)
    bench.write(first, 0, ROWS)
    bench.text(first, 30)
    bench.step((first, [BOS], 0))
    bench.step((first, [2], None))
    second = bench.begin(1, base=9)
    bench.step((second, [BOS], 0))
    bench.step((second, [5], None))


@pytest.mark.parametrize("device", DEVICES)
def test_stale_and_missing_rows_are_seen_and_left_out(pool: Pool, device: str) -> None:
    """A row of another lease, or one that nobody wrote, is counted and not used: poison never gets into a result."""
    bench = Bench(pool, device, shared=True)
    old = bench.begin(1)
    bench.write(old, 0, ROWS)
    new = bench.begin(1)
    bench.pool.append_text(1, [(5, 3)] * 10, final=False)
    bench.ids[0] = BOS
    bench.on_device.step([Entry(1, 0, 1)], bench.ids, bench.embeddings)
    assert bench.faults == 1
    assert torch.isfinite(bench.embeddings).all()
    fresh = bench.begin(2)
    bench.pool.append_text(2, [(5, 3)] * 10, final=False)
    bench.embeddings.zero_()
    bench.on_device.step([Entry(2, 0, 1)], bench.ids, bench.embeddings)
    assert bench.faults == 2
    assert torch.isfinite(bench.embeddings).all()
    bench.write(new, 0, ROWS)
    bench.write(fresh, 0, ROWS)
    bench.step((new, [4], None), (fresh, [7], None))
    assert bench.faults == 2


@pytest.mark.gpu
def test_a_captured_graph_does_the_same() -> None:
    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=SLOTS,
        hidden_size=HIDDEN,
        max_rows=ROWS,
        max_text_rows=TEXT,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
    )
    pool = Pool(spec, create=True)
    try:
        bench = Bench(pool, "cuda", shared=True)
        bench.on_device.capture(SLOTS, bench.ids, bench.embeddings)
        replies = [bench.begin(slot) for slot in range(SLOTS)]
        for said in replies:
            bench.write(said, 0, ROWS)
            bench.text(said, 40)
        bench.step(*((said, [BOS], 0) for said in replies[:3]))
        for _ in range(12):
            chosen = [replies[index] for index in bench.rng.permutation(3)[: bench.rng.integers(1, 4)]]
            bench.step(*((said, [int(bench.rng.integers(BOS))], None) for said in chosen))
        assert bench.faults == 0
    finally:
        pool.close()
