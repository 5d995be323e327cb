"""``GET /v1/stats``: how the server is doing, as JSON, for operators and the benchmark.

``cpu_s`` is what this process has used of processors, without its stages; ``loop_lag_ms`` is of the last minute, or of
the last ``?lag_seconds=S``.

``POST /v1/profile?seconds=S&gpu_seconds=S``, where it is allowed: where the time goes in the next seconds.
"""

from __future__ import annotations

import asyncio
import math
import os
import time

from aiohttp import web

from voicechat.contract.cascade import Operations
from voicechat.faces.errors import ApiError
from voicechat.faces.looplag import KEPT, PERIOD, LoopLag
from voicechat.faces.operation import JSON, Operation, Reply, documented

_SECONDS = {"type": "number", "minimum": 0}
_STATS = Operation(
    "How the server is doing",
    {200: Reply("Its figures.", {JSON: {"type": "object"}})},
    errors=(400,),
    query={"lag_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": PERIOD * KEPT}},
)
_PROFILE = Operation(
    "Where the time goes in the next seconds; only where the server allows it",
    {200: Reply("By stage.", {JSON: {"type": "object"}})},
    errors=(400,),
    query={"seconds": _SECONDS, "gpu_seconds": _SECONDS},
    required_query=("seconds", "gpu_seconds"),
)


def _process() -> dict[str, float]:
    """Of this process: its id, its tasks, and the processor time that it has used."""
    return {"pid": os.getpid(), "tasks": len(asyncio.all_tasks()), "cpu_s": time.process_time()}


def setup(app: web.Application, operations: Operations, lag: LoopLag, *, profiling: bool = False) -> None:
    """Add the routes."""

    @documented(_STATS)
    async def stats(request: web.Request) -> web.Response:
        try:
            seconds = float(request.query.get("lag_seconds", PERIOD * KEPT))
        except ValueError:
            raise ApiError(400, "'lag_seconds' is a number.", code="invalid_value", param="lag_seconds") from None
        if not 0 < seconds <= PERIOD * KEPT:
            raise ApiError(
                400, "'lag_seconds' is more than 0, and 60 at most.", code="invalid_value", param="lag_seconds"
            )
        lags = {"p50": lag.percentile_ms(50, seconds), "p99": lag.percentile_ms(99, seconds)}
        return web.json_response({**operations.stats(), "loop_lag_ms": lags, **_process()})

    @documented(_PROFILE)
    async def profile(request: web.Request) -> web.Response:
        try:
            seconds, gpu_seconds = (float(request.query[name]) for name in ("seconds", "gpu_seconds"))
        except (KeyError, ValueError):
            raise ApiError(400, "'seconds' and 'gpu_seconds' are needed, as numbers.", code="invalid_value") from None
        if not (0 <= seconds < math.inf and 0 <= gpu_seconds < math.inf):
            raise ApiError(400, "'seconds' and 'gpu_seconds' are numbers from 0.", code="invalid_value")
        return web.json_response(await operations.profile(min(seconds, 30.0), min(gpu_seconds, 5.0)))

    app.router.add_get("/v1/stats", stats)
    if profiling:
        app.router.add_post("/v1/profile", profile)
