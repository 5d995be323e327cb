"""The ears in a process of their own: what they hear, one sound after another; no engine is loaded for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from tests.cascade.listening import SPEAKERS, error_rate
from tests.stages.hosts import StageHost
from tests.stages.pools import small_pool
from voicechat.assemble import AssembledPaths
from voicechat.contract.messages import Abort, Failed, Transcribe, Transcript
from voicechat.contract.pool import Pool
from voicechat.models.ears.whisper import Ears
from voicechat.stages import ears

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "What is the capital of France?"
BAYS = 4


@dataclass
class Running:
    host: StageHost
    pool: Pool
    sound: np.ndarray
    reference: Ears

    def say(self, number: int, bay: int, sound: np.ndarray) -> None:
        self.pool.bays[bay, : len(sound)] = sound
        self.host.send(Transcribe(number, bay, len(sound)))

    async def heard(self, number: int) -> Transcript | Failed:
        await self.host.until(lambda: bool(self.host.messages[number]))
        (message,) = self.host.messages[number]
        assert isinstance(message, Transcript | Failed)
        return message


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(stage_host: None, plain_models: AssembledPaths) -> AsyncIterator[Running]:
    spec = small_pool(bays=BAYS, bay_samples=16_000 * 8)
    told = ears.EarsSpec(dir=str(plain_models.ears), threads=1, beam_size=1)
    pool = Pool(spec, create=True)
    host = StageHost("ears", ears.run, ears.EarsConfig(ears=told, pool=spec, log_level=40))
    try:
        await host.stage.start()
        own = Ears(told.dir, threads=1, beam_size=1)
        yield Running(host, pool, SPEAKERS["espeak-us"](QUESTION), own)
    finally:
        await host.stage.stop()
        pool.close()


async def test_what_is_heard_is_what_the_ears_hear_here(running: Running) -> None:
    running.say(1, 0, running.sound)
    said = await running.heard(1)
    assert isinstance(said, Transcript)
    assert said.heard.text == running.reference.transcribe(running.sound)
    assert error_rate(QUESTION, said.heard.text) <= 0.4
    assert said.seconds > 0


def maps(pid: int | None) -> str:
    """Files that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()


async def test_no_engine_is_loaded(running: Running) -> None:
    """The process maps neither vLLM nor torch."""
    mapped = maps(running.host.stage.pid)
    assert "ctranslate2" in mapped
    assert "libtorch" not in mapped
    assert "vllm" not in mapped


async def test_many_sounds_and_some_given_up(running: Running) -> None:
    """Each has its one answer; a sound whose turn had not come is not listened to."""
    for bay in range(BAYS):
        running.say(10 + bay, bay, running.sound if bay % 2 else np.zeros(16_000, np.float32))
    running.host.send(Abort(13))
    running.host.send(Abort(99))
    first, second, third, fourth = [await running.heard(10 + bay) for bay in range(BAYS)]
    assert isinstance(first, Transcript)
    assert isinstance(third, Transcript)
    assert first.heard.text == third.heard.text == ""
    assert isinstance(second, Transcript)
    assert second.heard.text == running.reference.transcribe(running.sound)
    assert isinstance(fourth, Failed)
    await asyncio.sleep(0.1)
    assert all(len(running.host.messages[10 + bay]) == 1 for bay in range(BAYS))
