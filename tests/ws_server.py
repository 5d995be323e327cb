"""The whole application over the double cascade on a loopback port, and a WebSocket with nothing in between."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from openai import AsyncOpenAI

from tests.protocol import check_server_event
from tests.speech import silence, voice
from voicechat.faces import realtime_ws
from voicechat.faces.app import FaceSettings, create_app
from voicechat.media.resample import to_pcm


def pcm(sound: np.ndarray) -> str:
    return base64.b64encode(to_pcm(sound.astype(np.float32)).astype("<i2").tobytes()).decode()


def spoken(seconds: float = 0.8) -> np.ndarray:
    """A turn as a microphone hears it, at 24 kHz."""
    return np.concatenate([silence(0.4, 24_000), voice(seconds, 24_000), silence(1.6, 24_000)])


class Server:
    """``extensions`` are those of :func:`create_app`."""

    def __init__(self, cascade: Any, settings: FaceSettings, extensions: Sequence[Any] = ()) -> None:
        self.cascade = cascade
        self.app = create_app(cascade, settings, extensions=extensions)
        self.base = ""

    async def start(self) -> None:
        self.runner = web.AppRunner(self.app, shutdown_timeout=1.0)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.base = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        self.http = aiohttp.ClientSession()

    async def stop(self) -> None:
        await self.http.close()
        await self.until_empty()
        await self.runner.cleanup()
        assert all(response.cancelled.is_set() or response.ended for response in self.cascade.responses)

    async def until_empty(self) -> None:
        """All sessions are gone within 2 s."""
        for _ in range(200):
            if not len(self.app[realtime_ws.WS_FACE]):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("a session is still there")

    def client(self, key: str = "none") -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.base}/v1", api_key=key, max_retries=0)

    @contextlib.asynccontextmanager
    async def raw(self, path: str = "/v1/realtime?model=double", **options: Any) -> AsyncIterator[Raw]:
        async with self.http.ws_connect(f"{self.base}{path}", max_msg_size=0, **options) as ws:
            yield Raw(ws)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    """``await start(cascade, settings, extensions)`` starts one of the servers that are stopped in the end."""
    servers: list[Server] = []

    async def start(cascade: Any, settings: FaceSettings, extensions: Sequence[Any] = ()) -> Server:
        server = Server(cascade, settings, extensions)
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


class Raw:
    """A WebSocket with nothing in between. Every event that comes is checked."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.events: list[dict[str, Any]] = []

    async def tell(self, kind: str, **fields: Any) -> None:
        await self.ws.send_str(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The ``count``-th event of ``kind``."""
        async with asyncio.timeout(20):
            while True:
                found = self.all(kind)
                if len(found) >= count:
                    return found[count - 1]
                message = await self.ws.receive()
                assert message.type is aiohttp.WSMsgType.TEXT, (message, self.kinds())
                event = json.loads(message.data)
                check_server_event(event)
                self.events.append(event)

    async def closed(self) -> int:
        async with asyncio.timeout(20):
            while True:
                message = await self.ws.receive()
                if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING):
                    assert self.ws.close_code is not None
                    return self.ws.close_code
                if message.type is aiohttp.WSMsgType.TEXT:
                    self.events.append(json.loads(message.data))

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def sound(self) -> bytes:
        return b"".join(base64.b64decode(event["delta"]) for event in self.all("response.output_audio.delta"))

    async def say(self, sound: np.ndarray, chunk: int = 4800) -> None:
        for start in range(0, len(sound), chunk):
            await self.tell("input_audio_buffer.append", audio=pcm(sound[start : start + chunk]))

    async def ask(self, text: str = "hello") -> None:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        await self.tell("conversation.item.create", item=item)
        await self.tell("response.create")
