"""The whole application over a cascade without models, as a program: prints its address once it serves."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import sys
from pathlib import Path

from aiohttp import web

from tests.cascade_double import DoubleCascade
from tests.clients import speaking_cascade
from tests.clients.speaking_cascade import SpeakingCascade
from voicechat.faces import webrtc
from voicechat.faces.app import FaceSettings, create_app
from voicechat.media.ice import IceSettings
from voicechat.media.rtc import PeerSettings

WEB = Path(__file__).resolve().parents[2] / "web"
ANSWER = "Paris is the capital of France, and it lies on the river Seine."


async def main() -> None:
    """Serve on loopback until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--not-ready", action="store_true")
    parser.add_argument("--max-sessions", type=int, default=2)
    parser.add_argument("--key")
    parser.add_argument("--speaking", type=Path, help="a file of tests.clients.speaking_cascade: hears and speaks")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    settings = webrtc.RtcSettings(
        peer=PeerSettings(ice=IceSettings(interfaces=("none",), loopback=True)), max_sessions=arguments.max_sessions
    )
    cascade: DoubleCascade | SpeakingCascade = DoubleCascade(
        transcripts=["What is the capital of France?"],
        answer=ANSWER,
        first_delay=1.5,
        word_delay=0.1,
        ready=not arguments.not_ready,
    )
    if arguments.speaking is not None:
        cascade = speaking_cascade.load(arguments.speaking)
    app = create_app(
        cascade,
        FaceSettings(web_dir=WEB, api_keys=(arguments.key,) if arguments.key else ()),
        extensions=[functools.partial(webrtc.setup, settings=settings)],
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
