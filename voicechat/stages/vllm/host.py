"""What the hosts of engines share: the environment that vLLM reads, its signs of life, its profile, its end."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from voicechat.contract.pool import Pool
from voicechat.contract.stopwatch import Stopwatch
from voicechat.stages.host import Host, quiet
from voicechat.stages.placement import Placement, see_gpus

WATCH_PERIOD = 0.5
"""Seconds between two looks at an engine."""


def prepare_engine(place: Placement, environ: Any = os.environ) -> None:
    """Environment of a process with a vLLM engine; before vLLM is imported."""
    environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if place.on_gpu:
        see_gpus(place.gpus, environ)
        environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(place.runner == "v2"))
    quiet("vllm")


class EngineHost(Host):
    """A stage whose work a vLLM engine does; ``_engine`` is there once the stage is warm."""

    _engine: Any = None

    @staticmethod
    async def keeper_ready(pool: Pool, place: Placement) -> None:
        """Wait, where the engine is about to take memory of a GPU, until the keeper has found that all of it fits."""
        from voicechat.stages.rows import keeper_ready

        await keeper_ready(pool, place.on_gpu)

    @staticmethod
    async def watch(engine: Any) -> None:
        """End the stage if the core of its vLLM engine dies while no request is inside to meet the fault."""
        while True:
            await asyncio.sleep(WATCH_PERIOD)
            if engine.errored:
                raise RuntimeError("the engine core has died")

    def watch_work(self, watch: Stopwatch) -> None:
        watch.watch(self._engine.output_processor, "process_outputs", "engine_outputs")
        watch.watch(self.channel, "send", "send")
        watch.watch(self, "handle", "handle")

    async def profile_engine(self, step: str) -> dict[str, Any] | None:
        found: list[dict[str, Any] | None] = await self._engine.collective_rpc(f"profile_{step}")
        return found[0]

    async def answer(self) -> None:
        await self._engine.is_sleeping()  # goes to the engine core and back

    async def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
