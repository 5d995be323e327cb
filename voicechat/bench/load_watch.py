"""What the machine does while users are served: its GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from voicechat.bench.measures import percentile

PERIOD_S = 0.1
"""Seconds between two looks at the GPUs."""


@dataclass(slots=True)
class Watched:
    """What was seen: of each GPU the share of time with a kernel on it, in percent, and the most memory in use."""

    gpus: list[dict[str, float]] = field(default_factory=list)


class Gpus:
    """The GPUs as NVIDIA's management library sees them; none where it is not there."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._handles: list[Any] = []
        if library is None:
            try:
                self._library = importlib.import_module("pynvml")
            except ImportError:
                return
        try:
            self._library.nvmlInit()
            count = self._library.nvmlDeviceGetCount()
            self._handles = [self._library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except self._library.NVMLError:
            self._handles = []

    def look(self) -> list[tuple[float, float]]:
        """Of each GPU: percent of the last moment in use, MiB in use."""
        library = self._library
        return [
            (
                float(library.nvmlDeviceGetUtilizationRates(handle).gpu),
                library.nvmlDeviceGetMemoryInfo(handle).used / (1 << 20),
            )
            for handle in self._handles
        ]


@contextlib.asynccontextmanager
async def watching(gpus: Gpus) -> AsyncIterator[Watched]:
    """Watch until the block ends; then the object that it got is filled in."""
    watched, looks = Watched(), list[list[tuple[float, float]]]()

    async def look() -> None:
        while True:
            looks.append(await asyncio.to_thread(gpus.look))
            await asyncio.sleep(PERIOD_S)

    looking = asyncio.create_task(look())
    try:
        yield watched
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    for number in range(len(looks[0]) if looks else 0):
        used = [look[number][0] for look in looks]
        watched.gpus.append(
            {
                "utilisation_mean": sum(used) / len(used),
                "utilisation_p95": percentile(used, 0.95),
                "memory_mb": max(look[number][1] for look in looks),
            }
        )
