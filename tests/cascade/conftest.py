"""The whole cascade on ``embedded-tiny``, inside the test's own process, for tests that look behind the faces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest_asyncio

from tests.real_server import Servers, pools
from voicechat.app import build
from voicechat.assemble import assemble
from voicechat.cascade.coordinator import Coordinator
from voicechat.config import load_settings
from voicechat.contract.events import AudioDelta, Event, Finished, Heard, TextDelta
from voicechat.contract.requests import AudioPart, Message, ResponseRequest, Sampling, TextPart
from voicechat.contract.sound import Pcm

SLOTS = 3
WAITING = 4
WAIT = 20.0
SETTINGS = (
    f"pool.slots={SLOTS}",
    f"pool.max_waiting={WAITING}",
    f"pool.acquire_timeout_s={WAIT}",
    "thinker.max_model_len=1024",
    "server.log_level=warning",
)
PATIENCE = 180.0
"""Bound in seconds on any wait, so that a fault shows as a failure and not as a hang."""


@dataclass
class Reply:
    """All that one response gave."""

    events: list[Event] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def pcm(self) -> Pcm:
        return np.concatenate([np.zeros(0, np.int16), *(e.pcm for e in self.events if isinstance(e, AudioDelta))])

    @property
    def heard(self) -> tuple[str, ...]:
        return next((event.transcripts for event in self.events if isinstance(event, Heard)), ())

    @property
    def finished(self) -> Finished:
        (end,) = (event for event in self.events if isinstance(event, Finished))
        assert end is self.events[-1]
        return end


def request(*parts: str | np.ndarray, **fields: Any) -> ResponseRequest:
    """A question of texts and sounds; greedy and with a fixed seed unless ``sampling`` says else."""
    content = tuple(TextPart(part) if isinstance(part, str) else AudioPart(part) for part in parts)
    fields.setdefault("sampling", Sampling(temperature=0.0, seed=1, max_tokens=60))
    return ResponseRequest((Message("user", content),), **fields)


async def read(response: Any) -> Reply:
    """Read a response to its end."""
    reply = Reply()
    async with asyncio.timeout(PATIENCE):
        async for event in response:
            reply.events.append(event)
    return reply


async def at_rest(cascade: Coordinator) -> None:
    """Wait until nothing runs; then every slot is free again."""
    end = time.monotonic() + 30
    while cascade.traffic.states or cascade.leases.free != SLOTS:
        assert time.monotonic() < end, (
            f"{cascade.leases.free} slots are free, {len(cascade.traffic.states)} replies are left"
        )
        await asyncio.sleep(0.01)
    assert cascade.leases.waiting == 0
    assert cascade.hearing.bays.free == SLOTS
    assert not cascade.hearing.pending


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def coordinator(servers: Servers) -> AsyncIterator[Coordinator]:
    """A warm cascade. Lives until the end of the run, so tests that use it come last."""
    servers.stop()
    settings = load_settings("embedded-tiny", overrides=SETTINGS)
    made = build(settings, assemble(settings))
    try:
        async with asyncio.timeout(PATIENCE):
            await made.start()
        yield made
    finally:
        await made.stop()
    assert made.pool.spec.name not in pools()
