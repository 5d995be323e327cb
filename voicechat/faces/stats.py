"""``GET /v1/stats``: how the server is doing, as JSON, for operators and the benchmark."""

from __future__ import annotations

from aiohttp import web

from voicechat.cascade.coordinator import Coordinator
from voicechat.looplag import LoopLag


def setup(app: web.Application, coordinator: Coordinator, lag: LoopLag) -> None:
    """Add the route."""

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

    app.router.add_get("/v1/stats", stats)
