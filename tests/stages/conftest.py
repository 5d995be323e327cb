"""Fixtures of the stages' tests: the voice that the package brings, and processes of single stages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
import torch

from tests.real_server import Servers
from voicechat.assemble import AssembledPaths, assemble
from voicechat.config import load_settings
from voicechat.contract.pool import Pool


@pytest.fixture(scope="session")
def plain_models() -> AssembledPaths:
    """Folders of ``embedded-tiny`` with Thinker and Talker as they are, not quantised."""
    plain = ("model.thinker.quantization=none", "model.talker.quantization=none")
    return assemble(load_settings("embedded-tiny", overrides=plain))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """References are computed in one thread: more of them only get in each other's way beside an engine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def stage_host(servers: Servers) -> None:
    """Marks tests that start a stage of their own: no server may run beside it."""
    servers.stop()


@pytest.fixture(scope="session")
def acknowledged() -> Callable[[Pool, str, int, int], Awaitable[None]]:
    """Waits until a worker has let go of a slot: its lane of the pool reads the generation."""

    async def wait(pool: Pool, lane: str, slot: int, generation: int) -> None:
        end = time.monotonic() + 30
        while int(getattr(pool, lane)[slot]) != generation:
            assert time.monotonic() < end, f"{lane}[{slot}] stays {getattr(pool, lane)[slot]}"
            await asyncio.sleep(0.005)

    return wait
