"""The faces over a cascade without models, served by a thread of their own, for clients that run their own loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tests.cascade_double import DoubleCascade
from voicechat.faces import webrtc
from voicechat.faces.app import FaceSettings, create_app
from voicechat.media.ice import IceSettings
from voicechat.media.rtc import PeerSettings

LOOPBACK = IceSettings(interfaces=("none",), loopback=True)


PROFILE = {
    "server": {"host": {"loop": 0.4, "cpu": 0.5, "messages_per_s": 900.0, "share": {"pump": 0.1}}, "engine": None},
    "talker": {
        "host": {"loop": 0.2, "cpu": 0.3, "messages_per_s": 800.0, "share": {}},
        "engine": {
            "steps": 100,
            "step_ms": 5.0,
            "share": {"schedule": 0.2, "rest": 0.8},
            "gpu": {"busy": 0.5, "kernels": 3, "to_host": {"copies": 9, "bytes": 90}, "rows_to_host": 0},
        },
    },
    "voicebox": {"error": "no answer"},
}


def make_app(cascade: DoubleCascade, settings: FaceSettings | None = None, *, profile: bool = True) -> web.Application:
    """All faces, ``POST /v1/profile`` if wanted, and ``/v1/stats`` with counters that go up by 100 rows a reading."""
    reads = 0

    async def stats(_: web.Request) -> web.Response:
        nonlocal reads
        reads += 1
        rows = 100 * reads
        pool = {"rows_written": rows, "write_ns": rows * 5000, "rows_read": rows * 2, "read_ns": rows * 60_000}
        slots = {"total": 8, "free": 8 - sum(not response.ended for response in cascade.responses), "waiting": 0}
        return web.json_response(
            {
                "pool": pool,
                "slots": slots,
                "pid": os.getpid(),
                "tasks": len(asyncio.all_tasks()),
                "cpu_s": reads / 10,
                "loop_lag_ms": {"p50": 0.1, "p99": 0.9},
            }
        )

    async def profiled(_: web.Request) -> web.Response:
        return web.json_response(PROFILE)

    def extend(app: web.Application, _: Any) -> None:
        webrtc.setup(app, cascade, webrtc.RtcSettings(peer=PeerSettings(ice=LOOPBACK)))
        app.router.add_get("/v1/stats", stats)
        if profile:
            app.router.add_post("/v1/profile", profiled)

    return create_app(cascade, settings, extensions=[extend])


@contextlib.contextmanager
def served(cascade: DoubleCascade, settings: FaceSettings | None = None, *, profile: bool = True) -> Iterator[str]:
    """The server's address; it is gone after the block."""
    address: list[str] = []
    running = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        runner = web.AppRunner(make_app(cascade, settings, profile=profile))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        running.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert running.wait(10), "the double did not start"
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
