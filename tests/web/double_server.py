"""The whole application over a cascade without models, as a program: prints its address once it serves."""

from __future__ import annotations

import argparse
import asyncio
import base64
import dataclasses
import functools
import gc
import logging
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.cascade_double import DoubleCascade
from tests.clients import speaking_cascade
from tests.clients.speaking_cascade import SpeakingCascade
from voicechat.contract.cascade import Watermark
from voicechat.contract.requests import ImagePart
from voicechat.faces import provenance, realtime_ws, webrtc
from voicechat.faces.admission import admission
from voicechat.faces.app import FaceSettings, create_app
from voicechat.faces.realtime_shell import Shell
from voicechat.media.ice import IceSettings
from voicechat.media.rtc import Peer, PeerSettings
from voicechat.provenance import Checker
from voicechat.realtime.session import Session
from voicechat.watermark.keys import Key

WEB = Path(__file__).resolve().parents[2] / "web"
ANSWER = "Paris is the capital of France, and it lies on the river Seine."


def watch(app: web.Application, cascade: Any) -> None:
    """``GET /left``: what there is of sessions in this process: their places, objects and tasks, and live replies."""

    async def left(_: web.Request) -> web.Response:
        gc.collect()
        objects = [type(thing).__name__ for thing in gc.get_objects() if type(thing) in (Session, Shell, Peer)]
        replies = sum(not response.ended for response in cascade.responses)
        counts = {"places": admission(app).live, "tasks": len(asyncio.all_tasks()), "replies": replies}
        return web.json_response({**counts, "objects": objects}, headers={"Connection": "close"})

    async def pictures(_: web.Request) -> web.Response:
        """What the last response was to look at, as base64."""
        parts = [part for message in cascade.requests[-1].messages for part in message.parts]
        shown = [base64.b64encode(part.data).decode() for part in parts if isinstance(part, ImagePart)]
        return web.json_response(shown)

    app.router.add_get("/left", left)
    app.router.add_get("/pictures", pictures)


async def main() -> None:
    """Serve on loopback until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--not-ready", action="store_true")
    parser.add_argument("--sees", action="store_true", help="the model sees images")
    parser.add_argument("--max-sessions", type=int, default=2)
    parser.add_argument("--key")
    parser.add_argument("--answer", default=ANSWER)
    parser.add_argument("--word-delay", type=float, default=0.1)
    parser.add_argument("--heartbeat", type=float, default=20.0, help="of WebSocket connections, in seconds")
    parser.add_argument("--consent", type=float, default=30.0, help="how long a call may leave checks unanswered, in s")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--ports", type=int, nargs=2, default=(0, 0), metavar=("FIRST", "LAST"), help="UDP, of calls")
    parser.add_argument("--public-address", help="of the NAT before this server")
    parser.add_argument("--speaking", type=Path, help="a file of tests.clients.speaking_cascade: hears and speaks")
    parser.add_argument("--marked", nargs=2, metavar=("KEY", "PAYLOAD"), help="the spoken sound is marked so")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    public = () if arguments.public_address is None else (arguments.public_address,)
    ice = IceSettings(public_addresses=public)
    if arguments.host == "127.0.0.1":
        ice = IceSettings(interfaces=("none",), loopback=True)
    settings = webrtc.RtcSettings(
        peer=PeerSettings(ice=ice, consent=arguments.consent),
        max_sessions=arguments.max_sessions,
        ports=tuple(arguments.ports),
    )
    cascade: DoubleCascade | SpeakingCascade = DoubleCascade(
        transcripts=["What is the capital of France?"],
        answer=arguments.answer,
        first_delay=1.5,
        word_delay=arguments.word_delay,
        ready=not arguments.not_ready,
        sees=arguments.sees,
    )
    if arguments.speaking is not None:
        cascade = speaking_cascade.load(arguments.speaking)
    extensions = [functools.partial(webrtc.setup, settings=settings), lambda app, _: watch(app, cascade)]
    if arguments.marked is not None and isinstance(cascade, SpeakingCascade):
        key = Key.parse(arguments.marked[0])
        cascade.watermark = Watermark(int(arguments.marked[1]), key.id)
        limits = provenance.CheckLimits(max_bytes=64 << 20, max_checks=4)
        extensions.append(functools.partial(provenance.setup, checker=Checker([key]), limits=limits))
    app = create_app(
        cascade,
        FaceSettings(web_dir=WEB, api_keys=(arguments.key,) if arguments.key else ()),
        extensions=extensions,
    )
    face = app[realtime_ws.WS_FACE]
    face._settings = dataclasses.replace(
        face._settings, max_sessions=arguments.max_sessions, heartbeat=arguments.heartbeat
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, arguments.host, 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
