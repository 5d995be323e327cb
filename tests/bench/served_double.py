"""The faces over a cascade without models, served by a thread of their own, for clients that run their own loop."""

from __future__ import annotations

import asyncio
import contextlib
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


def make_app(cascade: DoubleCascade, settings: FaceSettings | None = None) -> web.Application:
    """All faces, and ``/v1/stats`` with counters that go up by 100 rows each time they are read."""
    reads = 0

    async def stats(_: web.Request) -> web.Response:
        nonlocal reads
        reads += 1
        rows = 100 * reads
        pool = {"rows_written": rows, "write_ns": rows * 5000, "rows_read": rows * 2, "read_ns": rows * 60_000}
        return web.json_response({"pool": pool, "loop_lag_ms": {"p50": 0.1, "p99": 0.9}})

    def extend(app: web.Application, _: Any) -> None:
        webrtc.setup(app, cascade, webrtc.RtcSettings(peer=PeerSettings(ice=LOOPBACK)))
        app.router.add_get("/v1/stats", stats)

    return create_app(cascade, settings, extensions=[extend])


@contextlib.contextmanager
def served(cascade: DoubleCascade, settings: FaceSettings | None = None) -> Iterator[str]:
    """The server's address; it is gone after the block."""
    address: list[str] = []
    running = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        runner = web.AppRunner(make_app(cascade, settings))
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
