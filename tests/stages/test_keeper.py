"""The keeper on machines that tests make up: too few GPUs, too little memory, GPUs that don't reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from voicechat.contract.pool import Pool, PoolSpec
from voicechat.stages.keeper import Keeper, KeeperConfig
from voicechat.stages.placement import MIB, OverBudget
from voicechat.stages.rows import ON_HOST, announced


@pytest.fixture
def pool() -> Iterator[Pool]:
    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=2,
        hidden_size=8,
        max_rows=16,
        max_text_rows=16,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
        rows="either",
    )
    pool = Pool(spec, create=True)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with 1000 of 2000 MiB free; they don't reach each other."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (1000 * MIB, 2000 * MIB))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: False)


def keeper_of(pool: Pool, **fields: Any) -> Keeper:
    config = KeeperConfig(pool=pool.spec, log_level=40, **{"gpus": (1, 0), "peer": True, "budgets": {}, **fields})
    return Keeper(None, config)  # type: ignore[arg-type]


def test_too_few_gpus(pool: Pool) -> None:
    keeper = keeper_of(pool, budgets={5: {"voicebox": 1}})
    with pytest.raises(RuntimeError, match=r"the settings name the GPUs \[1, 0, 5\], but only 2 can be seen"):
        keeper._allocate()
    assert pool.keeper[0] == 0


def test_too_little_memory(pool: Pool) -> None:
    with pytest.raises(OverBudget, match=r"GPU 1: talker 900 \+ rows 200 = 1100 MiB are configured"):
        keeper_of(pool, budgets={1: {"talker": 900, "rows": 200}})._allocate()
    assert pool.keeper[0] == 0


async def test_gpus_that_do_not_reach_each_other(pool: Pool) -> None:
    keeper = keeper_of(pool, budgets={1: {"talker": 900}})
    assert await keeper.warm_up() == {"rows": "host", "bytes": 0}
    assert announced(pool, 0) == ON_HOST
    with pytest.raises(TypeError, match="not a message"):
        keeper.handle(None)  # type: ignore[arg-type]


def test_one_that_comes_back_does_not_count_its_own_server(pool: Pool) -> None:
    pool.keeper[1] = 4711
    assert keeper_of(pool, budgets={1: {"talker": 1900}})._allocate() == {"rows": "host", "bytes": 0}
