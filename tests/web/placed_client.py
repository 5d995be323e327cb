"""A call from where this program runs, as a program: prints what came of it as JSON.

``python -m tests.web.placed_client URL [TURN-URL NAME CREDENTIAL]``
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
from aiortc import RTCIceServer

from tests.rtc_client import Client
from tests.speech import rms
from voicechat.media.ice import IceSettings

INSTRUCTIONS = "Be brief. " * 2000
"""Longer than many packets."""


async def main(base: str, *turn: str) -> dict[str, object]:
    """Call, be told what was said, hear a reply."""
    helpers = [RTCIceServer(urls=turn[0], username=turn[1], credential=turn[2])] if turn else []
    async with aiohttp.ClientSession() as http:
        client = Client(http, base, IceSettings(), helpers)
        await client.connect()
        client.tell("session.update", session={"type": "realtime", "instructions": INSTRUCTIONS})
        updated = await client.wait_for("session.updated")
        client.ask("hello")
        await client.wait_for("output_audio_buffer.stopped")
        connection = client.connection.getTransceivers()[0].receiver.transport.transport._connection
        pair = connection._nominated[1]
        made = {
            "answer": client.answer,
            "told": updated["session"]["instructions"] == INSTRUCTIONS,
            "audible_s": sum(len(samples) for _, samples in client.heard if rms(samples) > 0.03) / 48_000,
            "local": [pair.local_candidate.type, pair.local_candidate.host],
            "remote": [pair.remote_candidate.host, pair.remote_candidate.port],
        }
        await client.close()
    return made


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
