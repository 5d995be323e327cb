"""Hidden rows between engines on GPUs: who writes them where, and why no reader ever sees a torn or a stale one.

The rows of all slots are one allocation on the Talker's GPU, ``hidden`` and behind it ``stamps``, one for each row: the
lease's generation and the row's number. Order is kept twice over:

1. *By causality.* The Thinker's worker enqueues the copies of a step's rows on the stream on which the step's tokens
   are then drawn. A token that has reached the Thinker's process therefore has its row in memory; the Talker's worker
   learns of the row only after that, and launches its gather only then. With two GPUs the Thinker's stream waits for
   the copy on the other GPU before it draws.
2. *By stamps.* A row's stamp is written after the row, on the same stream. The Talker's gather looks at the stamp
   first, then reads the row, then looks again: a row with both stamps right was whole and its lease's own while it was
   read. Any other is left out and counted in ``Pool.row_faults``, which stays 0.

A late write of a reply that has ended lands before any write of the slot's next reply, because one stream makes both.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.device import to_device
from voicechat.stages.cuda_ipc import Driver, as_tensor

ON_DEVICE, ON_HOST = 1, 2
"""What the keeper announces in ``Pool.keeper[0]``: rows lie on the Talker's GPU, or in the pool itself."""
_WAIT_S = 60.0
STAMP_ROWS = 1 << 20
"""More rows than a slot ever has."""
_ALIGN = 256

Ints = npt.NDArray[np.int64]


def stamp(generation: int, row: int) -> int:
    """The mark of row ``row`` of lease ``generation``; never 0, never negative."""
    return generation * STAMP_ROWS + row + 1


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """``hidden``: bfloat16 ``[slots * max_rows, hidden_size]``; ``stamps``: int64 ``[slots * max_rows]``."""

    hidden: Tensor
    stamps: Tensor


def rows_bytes(spec: PoolSpec) -> int:
    """Size of the allocation in bytes."""
    count = spec.slots * spec.max_rows
    return _hidden_bytes(spec) + 8 * count


def _hidden_bytes(spec: PoolSpec) -> int:
    return -(-spec.slots * spec.max_rows * spec.hidden_size * 2 // _ALIGN) * _ALIGN


def view_rows(memory: Tensor, spec: PoolSpec) -> DeviceRows:
    """The two parts of uint8 ``[rows_bytes(spec)]``."""
    if spec.max_rows >= STAMP_ROWS:
        raise ValueError(f"a slot has at most {STAMP_ROWS - 1} rows, not {spec.max_rows}")
    count = spec.slots * spec.max_rows
    hidden = memory[: count * spec.hidden_size * 2].view(torch.bfloat16).view(count, spec.hidden_size)
    stamps = memory[_hidden_bytes(spec) : _hidden_bytes(spec) + 8 * count].view(torch.int64)
    return DeviceRows(hidden, stamps)


def poison(rows: DeviceRows) -> None:
    """Make every row not-a-number and every stamp wrong, so that reading what nobody wrote can't pass for a row."""
    rows.hidden.fill_(float("nan"))
    rows.stamps.zero_()


def announced(pool: Pool, wait_s: float = _WAIT_S) -> int:
    """Where rows lie, :data:`ON_DEVICE` or :data:`ON_HOST`; waits for the keeper to say so.

    Raises RuntimeError after ``wait_s`` seconds.
    """
    if pool.spec.rows == "host":
        return ON_HOST
    deadline = time.monotonic() + wait_s
    while not pool.keeper[0]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nobody announced the GPU's part of the pool within {wait_s:g} s")
        time.sleep(0.02)
    return int(pool.keeper[0])


async def keeper_ready(pool: Pool, on_gpu: bool) -> None:
    """Wait, in a stage that is about to take memory of a GPU, until the keeper has found that all of it fits."""
    if on_gpu:
        await asyncio.get_running_loop().run_in_executor(None, announced, pool)


def open_rows(pool: Pool, device: torch.device, driver: Driver | None = None) -> DeviceRows:
    """The rows that the keeper allocated on ``device``, mapped into this process."""
    size = int(pool.keeper[2])
    if size != rows_bytes(pool.spec):
        raise RuntimeError(f"the pool on the GPU has {size} bytes, not {rows_bytes(pool.spec)}")
    driver = driver or Driver()
    torch.zeros(1, device=device)  # makes the device's context
    with torch.cuda.device(device):
        address = driver.open(pool.keeper_handle.tobytes())
    return view_rows(as_tensor(address, size, device), pool.spec)


class KeeperWatch:
    """Notices that the keeper whose memory this process has mapped is gone. Raises RuntimeError from :meth:`check`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._pid = int(pool.keeper[1])
        self._looked = time.monotonic()

    def check(self) -> None:
        """Cheap; looks at the process once a second."""
        if int(self._pool.keeper[1]) != self._pid:
            raise RuntimeError("the GPU's part of the pool was made anew: this stage has to start again")
        if self._pid and time.monotonic() > self._looked + 1.0:
            self._looked = time.monotonic()
            try:
                os.kill(self._pid, 0)
            except ProcessLookupError:
                raise RuntimeError("the process that keeps the GPU's part of the pool is gone") from None


class FaultReport:
    """Brings a counter on a device into ``Pool.row_faults`` now and then, without ever waiting for the device."""

    PERIOD = 64
    """Steps between two looks."""

    def __init__(self, pool: Pool, faults: Tensor) -> None:
        self._pool = pool
        self._faults = faults
        self._steps = 0
        on_gpu = faults.device.type == "cuda"
        self._seen = torch.zeros(1, dtype=torch.int64, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None

    def look(self) -> None:
        """Once a step."""
        self._steps += 1
        if self._steps % self.PERIOD:
            return
        if self._copied is None or self._steps == self.PERIOD or self._copied.query():
            self._pool.row_faults[0] = int(self._seen[0])
            self._seen.copy_(self._faults, non_blocking=True)
            if self._copied is not None:
                self._copied.record()


class SharedRows:
    """Rows that the Thinker writes on this device; see :class:`voicechat.contract.family.HiddenRows`.

    ``faults`` (int64 ``[1]`` on the device) counts rows that were wanted and were not whole, or not the lease's own.
    """

    def __init__(self, rows: DeviceRows, spec: PoolSpec) -> None:
        self._rows = rows
        self._spec = spec
        self.faults = torch.zeros(1, dtype=torch.int64, device=rows.hidden.device)

    def begin(self, slot: int) -> None:
        """Nothing is to be done."""

    def bring(self, slot: int, end: int) -> None:
        """They lie here already."""

    def gather(self, slots: Tensor, rows: Tensor, generations: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`voicechat.contract.family.HiddenRows`."""
        at = _places(slots, rows, self._spec)
        mark = generations * STAMP_ROWS + rows + 1
        good = wanted & (self._rows.stamps.index_select(0, at) == mark)
        hidden = self._rows.hidden.index_select(0, at)
        good = good & (self._rows.stamps.index_select(0, at) == mark)
        self.faults += (wanted & ~good).sum()
        return torch.where(good[:, None], hidden, 0).float(), good


class CopiedRows:
    """Rows that lie in the pool's shared memory, copied to the device as they are about to be read."""

    def __init__(self, pool: Pool, device: torch.device) -> None:
        spec = pool.spec
        self._pool = pool
        self._spec = spec
        self._device = device
        self._hidden = torch.zeros(spec.slots * spec.max_rows, spec.hidden_size, dtype=torch.bfloat16, device=device)
        self._copied = np.zeros(spec.slots, np.int64)

    def begin(self, slot: int) -> None:
        """Nothing of the new request's was brought yet."""
        self._copied[slot] = 0

    def bring(self, slot: int, end: int) -> None:
        """See :class:`voicechat.contract.family.HiddenRows`."""
        start = int(self._copied[slot])
        if start < end:
            fresh = to_device(self._pool.hidden[slot, start:end].copy(), self._device).view(torch.bfloat16)
            at = slot * self._spec.max_rows
            self._hidden[at + start : at + end] = fresh
            self._copied[slot] = end

    def gather(self, slots: Tensor, rows: Tensor, generations: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`voicechat.contract.family.HiddenRows`."""
        hidden = self._hidden.index_select(0, _places(slots, rows, self._spec))
        return torch.where(wanted[:, None], hidden, 0).float(), wanted


def _places(slots: Tensor, rows: Tensor, spec: PoolSpec) -> Tensor:
    """Places of rows among those of all slots on end, clamped to what there is."""
    return slots.clamp(0, spec.slots - 1) * spec.max_rows + rows.clamp(0, spec.max_rows - 1)


class RowWriter(Protocol):
    """Takes rows of a step's hidden states to where the Talker finds them."""

    def write(self, hidden: Tensor, source: Ints, target: Ints, stamps: Ints) -> None:
        """Write ``hidden[source]`` ``[n, hidden_size]`` to rows ``target`` (``slot * max_rows + row``)."""


class DeviceRowWriter:
    """Writes to the allocation on this GPU or, where peer access is possible, on another."""

    def __init__(self, rows: DeviceRows) -> None:
        self._rows = rows
        self._device = rows.hidden.device
        self._written = torch.cuda.Event() if self._device.type == "cuda" else None

    @torch.inference_mode()
    def write(self, hidden: Tensor, source: Ints, target: Ints, stamps: Ints) -> None:
        """See :class:`RowWriter`. Returns at once; the current stream of ``hidden``'s device has the order."""
        here = hidden.device
        plan = to_device(np.stack((source, target, stamps)), here)
        fresh = hidden.index_select(0, plan[0]).to(torch.bfloat16)
        if here == self._device:
            self._put(fresh, plan)
            return
        assert self._written is not None
        fresh, plan = fresh.to(self._device, non_blocking=True), plan.to(self._device, non_blocking=True)
        with torch.cuda.device(self._device):
            self._put(fresh, plan)
            self._written.record()
        torch.cuda.current_stream(here).wait_event(self._written)  # no token is drawn before its row lies there

    def _put(self, fresh: Tensor, plan: Tensor) -> None:
        # A stamp that is neither this row's nor another's stands while the row is being written.
        self._rows.stamps.index_fill_(0, plan[1], -1)
        self._rows.hidden.index_copy_(0, plan[1], fresh)
        self._rows.stamps.index_copy_(0, plan[1], plan[2])


class HostRowWriter:
    """Writes to shared memory, for GPUs that don't reach each other: waits for the device, so it is slower."""

    def __init__(self, pool: Pool) -> None:
        self._rows = pool.hidden.reshape(-1, pool.spec.hidden_size)

    @torch.inference_mode()
    def write(self, hidden: Tensor, source: Ints, target: Ints, stamps: Ints) -> None:
        """See :class:`RowWriter`."""
        fresh = hidden.index_select(0, to_device(source, hidden.device)).to(torch.bfloat16)
        self._rows[target] = fresh.view(torch.uint16).cpu().numpy()
