"""``GET /v1/stats``: how the server is doing, as JSON, for operators and the benchmark.

``POST /v1/profile?seconds=S&gpu_seconds=S``, where it is allowed: where the time goes in the next seconds.
"""

from __future__ import annotations

from aiohttp import web

from voicechat.contract.cascade import Operations
from voicechat.faces.looplag import LoopLag


def setup(app: web.Application, operations: Operations, lag: LoopLag, *, profiling: bool = False) -> None:
    """Add the routes."""

    async def stats(_: web.Request) -> web.Response:
        lags = {"p50": lag.percentile_ms(50), "p99": lag.percentile_ms(99)}
        return web.json_response({**operations.stats(), "loop_lag_ms": lags})

    async def profile(request: web.Request) -> web.Response:
        try:
            seconds, gpu_seconds = (float(request.query[name]) for name in ("seconds", "gpu_seconds"))
        except (KeyError, ValueError):
            raise web.HTTPBadRequest(text="seconds and gpu_seconds are needed, as numbers") from None
        return web.json_response(await operations.profile(min(seconds, 30.0), min(gpu_seconds, 5.0)))

    app.router.add_get("/v1/stats", stats)
    if profiling:
        app.router.add_post("/v1/profile", profile)
