"""``GET /v1/stats``: how the server is doing, as JSON, for operators and the benchmark.

``POST /v1/profile?seconds=S&gpu_seconds=S``, where it is allowed: where the time goes in the next seconds.
"""

from __future__ import annotations

from aiohttp import web

from voicechat.cascade.coordinator import Coordinator
from voicechat.faces.looplag import LoopLag


def setup(app: web.Application, coordinator: Coordinator, lag: LoopLag, *, profiling: bool = False) -> None:
    """Add the routes."""

    async def stats(_: web.Request) -> web.Response:
        rows_written, write_ns, rows_read, read_ns = (int(number) for number in coordinator.pool.counters)
        return web.json_response(
            {
                "ready": coordinator.ready,
                "stages": coordinator.stage_states(),
                "processes": {name: stage.pid for name, stage in coordinator.stages.items()},
                "slots": {
                    "total": coordinator.leases.total,
                    "free": coordinator.leases.free,
                    "waiting": coordinator.leases.waiting,
                },
                "pool": {
                    "bytes": coordinator.pool.size,
                    "rows_written": rows_written,
                    "write_ns": write_ns,
                    "rows_read": rows_read,
                    "read_ns": read_ns,
                    "row_faults": int(coordinator.pool.row_faults[0]),
                },
                "loop_lag_ms": {"p50": lag.percentile_ms(50), "p99": lag.percentile_ms(99)},
            }
        )

    async def profile(request: web.Request) -> web.Response:
        try:
            seconds, gpu_seconds = (float(request.query[name]) for name in ("seconds", "gpu_seconds"))
        except (KeyError, ValueError):
            raise web.HTTPBadRequest(text="seconds and gpu_seconds are needed, as numbers") from None
        return web.json_response(await coordinator.profile(min(seconds, 30.0), min(gpu_seconds, 5.0)))

    app.router.add_get("/v1/stats", stats)
    if profiling:
        app.router.add_post("/v1/profile", profile)
