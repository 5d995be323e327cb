"""No reader ever sees a row that is torn, stale or not there; and if one did, these tests would tell."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch

from tests.gpu.row_exchange import Exchange, read, write
from voicechat.cascade.stage import Stage
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.stages import keeper
from voicechat.stages.keeper import KeeperConfig
from voicechat.stages.rows import poison, rows_bytes, view_rows

_spawn = multiprocessing.get_context("spawn")
PATIENCE_S = 120.0


def spec_of(slots: int, rows: Any, hidden_size: int = 896) -> PoolSpec:
    return PoolSpec(
        name=PoolSpec.new_name(),
        slots=slots,
        hidden_size=hidden_size,
        max_rows=40,
        max_text_rows=64,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
        rows=rows,
    )


def exchange(told: Exchange) -> dict[str, tuple[int, ...]]:
    """Run both sides; what each has to tell, by its name."""
    results = _spawn.Queue()
    sides = [_spawn.Process(target=side, args=(told, results), daemon=True) for side in (read, write)]
    for side in sides:
        side.start()
    try:
        return {name: tuple(figures) for name, *figures in (results.get(timeout=PATIENCE_S) for _ in sides)}
    finally:
        for side in sides:
            side.join(10)
            if side.is_alive():
                side.kill()


def judge(found: dict[str, tuple[int, ...]], early: bool, least: int) -> None:
    count, _, wrong, faults = found["read"]
    assert count >= least
    if early:
        assert wrong > 0, "rows that were announced too early went unnoticed"
        assert faults > 0
    else:
        assert (wrong, faults) == (0, 0)


@pytest.mark.parametrize("early", [False, True])
def test_between_processes_on_the_cpu(early: bool) -> None:
    spec = spec_of(6, "host", hidden_size=64)
    pool = Pool(spec, create=True)
    try:
        memory = torch.zeros(rows_bytes(spec), dtype=torch.uint8).share_memory_()
        poison(view_rows(memory, spec))
        judge(exchange(Exchange(spec, "cpu", 6.0, memory=memory, early=early)), early, 100)
    finally:
        pool.close()


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("early", [False, True])
async def test_between_processes_on_one_gpu(early: bool, graphs: bool) -> None:
    await on_gpus((0,), early=early, graphs=graphs)


@pytest.mark.gpu
@pytest.mark.parametrize("early", [False, True])
async def test_between_two_gpus(early: bool) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    if not torch.cuda.can_device_access_peer(1, 0):
        pytest.skip("the GPUs don't reach each other")
    await on_gpus((0, 1), early=early, graphs=True)


async def on_gpus(gpus: tuple[int, ...], *, early: bool, graphs: bool, seconds: float = 8.0) -> None:
    """The keeper's allocation on the first GPU, the reader there, the writer on the last."""
    import asyncio

    spec = spec_of(128, "device")
    pool = Pool(spec, create=True)
    config = KeeperConfig(pool=spec, gpus=gpus, peer=True, budgets={}, log_level=30)
    stage = Stage("keeper", keeper.run, (config,), on_message=lambda message: None, on_death=lambda *_: None)
    try:
        await stage.start()
        told = Exchange(spec, "cuda", seconds, early=early, graphs=graphs, writer_gpu=gpus[-1], rows_gpu=gpus[0])
        judge(await asyncio.to_thread(exchange, told), early, 5000)
    finally:
        await stage.stop()
        pool.close()
