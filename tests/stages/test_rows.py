"""Rows between engines: what goes where, what a stamp says, and the driver's calls (a stand-in for the driver)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.vllm.test_bookkeeping import step_of
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.stages.cuda_ipc import CudaError, Driver
from voicechat.stages.rows import (
    ON_DEVICE,
    ON_HOST,
    STAMP_ROWS,
    DeviceRowWriter,
    HostRowWriter,
    KeeperWatch,
    announced,
    poison,
    rows_bytes,
    stamp,
    view_rows,
)
from voicechat.stages.vllm.thinker_worker import row_plan

SLOTS, ROWS, HIDDEN = 3, 8, 5


def spec_of(rows: Any = "host") -> PoolSpec:
    return PoolSpec(
        name=PoolSpec.new_name(),
        slots=SLOTS,
        hidden_size=HIDDEN,
        max_rows=ROWS,
        max_text_rows=16,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
        rows=rows,
    )


@pytest.fixture(params=["host", "device", "either"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    pool = Pool(spec_of(request.param), create=True)
    yield pool
    pool.close()


def test_shared_memory_holds_rows_only_if_they_may_lie_there(pool: Pool) -> None:
    assert pool.hidden.shape == (SLOTS, 0 if pool.spec.rows == "device" else ROWS, HIDDEN)


def test_where_rows_lie_is_waited_for(pool: Pool) -> None:
    if pool.spec.rows == "host":
        assert announced(pool, 0) == ON_HOST
        return
    with pytest.raises(RuntimeError, match="nobody announced"):
        announced(pool, 0)
    pool.keeper[0] = ON_DEVICE
    assert announced(pool, 0) == ON_DEVICE


@given(st.integers(1, 1 << 40), st.integers(0, STAMP_ROWS - 2), st.integers(1, 1 << 40), st.integers(0, STAMP_ROWS - 2))
def test_no_two_rows_have_one_stamp(generation: int, row: int, other: int, other_row: int) -> None:
    assert (stamp(generation, row) == stamp(other, other_row)) == ((generation, row) == (other, other_row))
    assert stamp(generation, row) > 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_rows_are_written_with_their_stamps(device: str) -> None:
    spec = spec_of("device")
    rows = view_rows(torch.zeros(rows_bytes(spec), dtype=torch.uint8, device=device), spec)
    poison(rows)
    assert bool(torch.isnan(rows.hidden).all())
    hidden = torch.randn(6, HIDDEN, device=device)
    source, target = np.array([4, 0]), np.array([ROWS * 2 + 3, 1])
    DeviceRowWriter(rows).write(hidden, source, target, np.array([stamp(9, 3), stamp(4, 1)]))
    assert torch.equal(rows.hidden[target.tolist()], hidden[[4, 0]].bfloat16())
    assert rows.stamps[target.tolist()].tolist() == [stamp(9, 3), stamp(4, 1)]
    assert int(rows.stamps.ne(0).sum()) == 2
    assert int(torch.isnan(rows.hidden).all(1).sum()) == SLOTS * ROWS - 2


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_rows_are_staged_in_shared_memory(device: str) -> None:
    pool = Pool(spec_of("either"), create=True)
    try:
        hidden = torch.randn(6, HIDDEN, device=device)
        HostRowWriter(pool).write(hidden, np.array([5, 2]), np.array([ROWS, 7]), np.array([1, 2]))
        assert np.array_equal(pool.hidden[1, 0], hidden[5].bfloat16().view(torch.uint16).cpu().numpy())
        assert np.array_equal(pool.hidden[0, 7], hidden[2].bfloat16().view(torch.uint16).cpu().numpy())
    finally:
        pool.close()


def test_the_plan_of_a_step() -> None:
    """Prompt positions have no row, the last of them predicts the first token; other requests are passed over."""
    requests = {"a": {"slot": 2, "ack": 7, "first": 9}, "b": {"slot": 0, "ack": 8, "first": 3}}
    written: dict[int, tuple[int, int]] = {}
    step = step_of({"a": 6}, {"b": 5, "x": 4}, {"a": 4, "b": 1, "x": 3})
    source, target, stamps = row_plan(["b", "x", "a"], step, requests, written, ROWS)
    assert source.tolist() == [0, 7]
    assert target.tolist() == [2, 2 * ROWS]
    assert stamps.tolist() == [stamp(8, 2), stamp(7, 0)]
    assert written == {0: (8, 3), 2: (7, 1)}


def test_rows_that_are_computed_again_are_not_written_again() -> None:
    requests = {"a": {"slot": 1, "ack": 5, "first": 2}}
    written = {1: (5, 4)}
    step = step_of({"a": 0}, {}, {"a": 8})
    source, target, _ = row_plan(["a"], step, requests, written, ROWS)
    assert (source.tolist(), target.tolist()) == ([6, 7], [ROWS + 4, ROWS + 5])
    requests["a"]["ack"] = 6  # the slot's next lease begins at the beginning
    source, _, _ = row_plan(["a"], step, requests, written, ROWS)
    assert source.tolist() == [2, 3, 4, 5, 6, 7]


def test_rows_end_where_the_slot_does() -> None:
    requests = {"a": {"slot": 1, "ack": 5, "first": 0}}
    source, target, _ = row_plan(["a"], step_of({}, {"a": ROWS - 1}, {"a": 3}), requests, {}, ROWS)
    assert (source.tolist(), target.tolist()) == ([0], [2 * ROWS - 1])


def test_the_end_of_the_keeper_is_noticed() -> None:
    pool = Pool(spec_of("device"), create=True)
    try:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        pool.keeper[:] = ON_DEVICE, child.pid, 0
        watch = KeeperWatch(pool)
        watch.check()
        child.kill()
        child.wait()
        watch._looked -= 2
        with pytest.raises(RuntimeError, match="is gone"):
            watch.check()
        pool.keeper[1] = os.getpid()
        with pytest.raises(RuntimeError, match="made anew"):
            watch.check()
    finally:
        pool.close()


class _Library:
    """Allocations of a made-up driver; a handle holds the address, and opening it gives another."""

    def __init__(self) -> None:
        self.cuIpcOpenMemHandle_v2 = _Open()

    def cuMemAlloc_v2(self, address: Any, size: ctypes.c_size_t) -> int:
        if size.value > 1 << 30:
            return 2
        address._obj.value = 0x7000
        return 0

    def cuIpcGetMemHandle(self, handle: Any, address: ctypes.c_uint64) -> int:
        handle._obj.reserved[:8] = address.value.to_bytes(8, "little")
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"out of memory"
        return 0


class _Open:
    argtypes: Any = None

    def __call__(self, address: Any, handle: Any, flags: ctypes.c_uint) -> int:
        assert flags.value == 1
        address._obj.value = int.from_bytes(bytes(handle.reserved[:8]), "little") + 1
        return 0


def test_the_driver_exports_and_opens() -> None:
    driver = Driver(_Library())
    handle = driver.export(driver.allocate(4096))
    assert len(handle) == 64
    assert driver.open(handle) == 0x7001
    with pytest.raises(ValueError, match="64 bytes"):
        driver.open(b"short")
    with pytest.raises(CudaError, match=r"cuMemAlloc_v2: out of memory \(CUDA error 2\)"):
        driver.allocate(1 << 31)
