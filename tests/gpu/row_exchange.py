"""A writer and a reader of rows in processes of their own, as the two engines are; rows tell whether they are whole.

Every number of a row follows from its lease and its place, so a reader knows it all: a torn, a stale or a missing row
shows in any single number of it. The slot of a lease that ended is poisoned before the next begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from voicechat.contract.family import Entry
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.conditioning import DeviceConditioning
from voicechat.models.embedded.talker import BOS
from voicechat.stages.rows import DeviceRows, DeviceRowWriter, SharedRows, announced, open_rows, stamp, view_rows

MODULUS = 251
"""Whole numbers under 256 are exact in bfloat16."""
DELAY_CYCLES = 20_000_000
"""Of a GPU's clock: some 10 ms."""
ADVANCE_ONE = 1
"""A token that moves the pointer by one row."""


@dataclass(frozen=True)
class Exchange:
    """What both processes are told. ``memory`` None: the keeper's allocation on the GPU. ``early``: announce rows when
    they are only under way, as a wrong design would; the reader must notice."""

    spec: PoolSpec
    device: str
    seconds: float
    memory: Tensor | None = None
    early: bool = False
    graphs: bool = False
    writer_gpu: int = 0
    rows_gpu: int = 0


def pattern(generations: Tensor, rows: Tensor, width: int) -> Tensor:
    """The rows of leases: float32 ``[n, width]``."""
    places = torch.arange(width, device=rows.device)
    return ((generations[:, None] * 31 + rows[:, None] * 7 + places * 13) % MODULUS).float()


def _open(pool: Pool, told: Exchange, gpu: int) -> DeviceRows:
    if told.memory is not None:
        return view_rows(told.memory, told.spec)
    announced(pool)
    return open_rows(pool, torch.device("cuda", gpu))


def _busy(device: torch.device) -> Callable[[], None]:
    """Work as a model's, so that what is enqueued behind it takes a while to come."""
    if device.type == "cpu":
        return lambda: time.sleep(0.0005)
    left = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(20):
            torch.mm(left, left)

    return work


def write(told: Exchange, results: Any) -> None:
    """Body of the writer: leases of all slots, a row of each a step, announced when the step's 'token' has come."""
    pool = Pool(told.spec)
    spec, device = (
        told.spec,
        torch.device(told.device, told.writer_gpu) if told.device == "cuda" else torch.device("cpu"),
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rows = _open(pool, told, told.rows_gpu)
    writer, work = DeviceRowWriter(rows), _busy(device)
    generations = np.zeros(spec.slots, np.int64)
    written = np.full(spec.slots, spec.max_rows, np.int64)
    token = torch.zeros(1, pin_memory=device.type == "cuda")
    copies = torch.cuda.Stream(device) if device.type == "cuda" else None
    count, lease, end = 0, 0, time.monotonic() + told.seconds
    while time.monotonic() < end:
        for slot in np.flatnonzero((written == spec.max_rows) & (pool.talker_ack == generations)):
            lease += 1
            at = slice(int(slot) * spec.max_rows, (int(slot) + 1) * spec.max_rows)
            rows.stamps[at] = 0
            rows.hidden[at] = float("nan")
            generations[slot], written[slot] = lease, 0
            pool.begin(int(slot), lease)
        slots = np.flatnonzero(written < spec.max_rows)
        if not len(slots):
            time.sleep(0.0001)
            continue
        work()
        source = np.arange(len(slots))
        hidden = pattern(
            torch.from_numpy(generations[slots]).to(device),
            torch.from_numpy(written[slots]).to(device),
            spec.hidden_size,
        )
        stamps = np.array([stamp(int(generations[slot]), int(written[slot])) for slot in slots])
        if told.early:
            _announce(pool, slots, written)
            if device.type == "cpu":
                time.sleep(0.002)
            else:
                torch.cuda._sleep(DELAY_CYCLES)  # the row comes when the device has slept, long after its announcement
        writer.write(hidden, source, slots * spec.max_rows + written[slots], stamps)
        drawn = hidden.sum()  # drawn on the same stream, and brought over by another, as vLLM does
        if copies is not None:
            copies.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(copies):
                token.copy_(drawn.reshape(1), non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record(copies)
            drawn.record_stream(copies)
            arrived.synchronize()
        if not told.early:
            _announce(pool, slots, written)
        written[slots] += 1
        count += len(slots)
    results.put(("written", count))
    pool.close()


def _announce(pool: Pool, slots: Any, written: Any) -> None:
    for slot in slots:
        row = int(written[slot])
        pool.append_text(int(slot), [(1, row)], final=row + 1 == pool.spec.max_rows)


class _Through(nn.Module):
    """In the Conditioner's place: what it adds is the hidden row itself."""

    hidden = True

    def forward(self, symbols: Tensor, hidden: Tensor, good: Tensor, voice: Tensor) -> Tensor:
        return hidden


def read(told: Exchange, results: Any) -> None:
    """Body of the reader: gathers every announced row by the Talker's own conditioning, and compares all of it."""
    pool = Pool(told.spec)
    spec, device = told.spec, torch.device(told.device, told.rows_gpu) if told.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rows = _open(pool, told, told.rows_gpu)
    shared = SharedRows(rows, spec)
    conditioning = DeviceConditioning(pool, _Through(), shared, device)  # type: ignore[arg-type]
    ids = torch.zeros(spec.slots, dtype=torch.int32, device=device)
    embeddings = torch.zeros(spec.slots, spec.hidden_size, device=device)
    if told.graphs:
        conditioning.capture(spec.slots, ids, embeddings)
    generations = np.zeros(spec.slots, np.int64)
    done = np.zeros(spec.slots, np.int64)
    wrong = torch.zeros(1, dtype=torch.int64, device=device)
    count, steps, end = 0, 0, time.monotonic() + told.seconds
    with torch.inference_mode():
        while time.monotonic() < end:
            for slot in np.flatnonzero(pool.generation != generations):
                generations[slot], done[slot] = pool.generation[slot], 0
                conditioning.begin(int(slot), int(generations[slot]), {"pointer": 0, "voice": 0})
            slots = np.flatnonzero((pool.text_ready > done) & (pool.generation == generations))
            if not len(slots):
                continue
            order = np.random.default_rng(steps).permutation(slots)
            tokens = np.where(done[order] == 0, BOS, ADVANCE_ONE)
            ids[: len(order)] = torch.from_numpy(tokens.astype(np.int32)).to(device)
            embeddings.zero_()
            entries = [Entry(int(slot), int(done[slot]), 1) for slot in order]
            conditioning.step(entries, ids, embeddings)
            expected = pattern(
                torch.from_numpy(generations[order]).to(device),
                torch.from_numpy(done[order]).to(device),
                spec.hidden_size,
            )
            wrong += (embeddings[: len(order)] != expected).any(1).sum()
            done[order] += 1
            count, steps = count + len(order), steps + 1
            finished = order[done[order] == spec.max_rows]
            if len(finished):
                if device.type == "cuda":
                    torch.cuda.synchronize(device)  # a worker acknowledges when its request is over
                pool.talker_ack[finished] = generations[finished]
    results.put(("read", count, steps, int(wrong.item()), int(shared.faults.item())))
    pool.close()
