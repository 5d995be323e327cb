"""The server's side of calls alone: everything but the stages, over a cascade without models, as a process of its own.

It prints its address once it serves, and ends with the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from aiohttp import web

from voicechat.bench.cascade_double import DoubleCascade
from voicechat.faces import stats, webrtc
from voicechat.faces.app import FaceSettings, create_app
from voicechat.faces.looplag import LoopLag
from voicechat.media.detectors import Detectors
from voicechat.media.ice import IceSettings
from voicechat.media.rtc import PeerSettings
from voicechat.realtime.session import SessionLimits

WORD_S = 0.3


class OperatedDouble(DoubleCascade):
    """A double that operators may look at."""

    def stats(self) -> dict[str, Any]:
        """Nothing but that it is ready."""
        return {"ready": self.ready}

    async def profile(self, seconds: float, gpu_seconds: float) -> dict[str, Any]:
        """There is no stage to look at."""
        return {}


async def _serve(options: argparse.Namespace) -> None:
    sound = np.load(options.sound)
    words = max(1, int(len(sound) / (24_000 * WORD_S)))
    cascade = OperatedDouble(answer="word " * words, word_seconds=WORD_S, sound=sound)
    detectors, lag = Detectors.load(options.detectors), LoopLag()
    rtc = webrtc.RtcSettings(
        peer=PeerSettings(ice=IceSettings(interfaces=("none",), loopback=True)),
        limits=SessionLimits(),
        max_sessions=options.sessions,
        detectors=detectors,
    )
    app = create_app(
        cascade,
        FaceSettings(detectors=detectors),
        extensions=[
            lambda app, seen: webrtc.setup(app, seen, rtc),
            lambda app, _: stats.setup(app, cascade, lag),
        ],
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    measuring = loop.create_task(lag.measure())
    gc.collect()
    gc.freeze()  # as the server does
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await stop.wait()
    measuring.cancel()
    await runner.cleanup()
    detectors.close()


def main(words: Sequence[str] | None = None) -> None:
    """Serve until terminated."""
    from voicechat.stages.host import die_with_parent

    parser = argparse.ArgumentParser()
    parser.add_argument("--sound", type=Path, required=True, help="what every reply is: .npy, int16 at 24 kHz")
    parser.add_argument("--detectors", type=Path, required=True, help="their folder")
    parser.add_argument("--sessions", type=int, required=True, help="at most")
    parser.add_argument("--profile", type=Path, help="where cProfile writes in the end")
    options = parser.parse_args(words)
    die_with_parent()
    profile = cProfile.Profile() if options.profile else None
    if profile is not None:
        profile.enable()
    uvloop.run(_serve(options))
    if profile is not None:
        profile.disable()
        profile.dump_stats(options.profile)


if __name__ == "__main__":
    main()
