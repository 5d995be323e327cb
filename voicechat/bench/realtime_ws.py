"""A realtime client over WebSocket, with nothing of the server's code: it sends a live microphone, plays what comes,
and does on ``speech_started`` what clients do: it stops its player and tells the server how much was heard."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any
from urllib.parse import quote

import aiohttp
import numpy as np

from voicechat.bench.realtime_player import RATE, Place, Player
from voicechat.bench.realtime_trace import FRAME_S, LineError, LiveMicrophone, News, Record, now

_CONNECT_S = 15.0


class WsLine:
    """One session; :meth:`open` makes it. Implements :class:`voicechat.bench.realtime_trace.Line`."""

    transport = "ws"

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, frame_s: float) -> None:
        self._ws = ws
        self.microphone = LiveMicrophone(RATE, frame_s)
        self.player = Player()
        self.record = Record(pieces=self.player.pieces, chunks=self.player.chunks, sounds=self.player.sounds)
        self.news = News()
        self._live: set[str] = set()
        self._out: asyncio.Queue[str] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, http: aiohttp.ClientSession, base: str, *, headers: dict[str, str], session: dict[str, Any],
        frame_s: float = FRAME_S,
    ) -> WsLine:  # fmt: skip
        """Connect and set the session up, whose ``model`` goes into the address. Raises :class:`LineError`."""
        session = dict(session)
        address = f"{base}/v1/realtime?model={quote(str(session.pop('model')))}"
        try:
            async with asyncio.timeout(_CONNECT_S):
                ws = await http.ws_connect(address, headers=headers, max_msg_size=0)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LineError(f"{base} can't be reached: {error or 'timeout'}") from None
        line = cls(ws, frame_s)
        line._tasks.append(asyncio.create_task(line._read()))
        line._tasks.append(asyncio.create_task(line._write()))
        try:
            line.tell("session.update", session=session)
            async with asyncio.timeout(_CONNECT_S):
                while line.record.first("session.updated") is None:
                    if line.record.lost is not None or line.record.all("error"):
                        errors = [event["error"]["message"] for _, event in line.record.all("error")]
                        raise LineError("; ".join(errors) or line.record.lost or "")
                    await line.news.wait(1.0)
        except TimeoutError:
            await line.close()
            raise LineError(f"the session was not set up within {_CONNECT_S:g} s") from None
        except BaseException:
            await line.close()
            raise
        line._tasks.append(asyncio.create_task(line._speak()))
        return line

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a client event, after what was told before."""
        self._out.put_nowait(json.dumps({"type": kind, **fields}))

    def busy(self) -> bool:
        """True while the server makes a reply."""
        return bool(self._live)

    async def close(self) -> None:
        """End the session."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            await self._ws.close()

    async def _speak(self) -> None:
        origin, count = now(), 0
        while True:
            await asyncio.sleep(max(0.0, origin + count * self.microphone.frame_s - now()))
            count += 1
            pcm = self.microphone.next_frame()
            text = base64.b64encode(pcm.astype("<i2").tobytes()).decode()
            self._out.put_nowait(f'{{"type":"input_audio_buffer.append","audio":"{text}"}}')
            self.microphone.note(pcm, now())
            self.news.tell()

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            while True:
                await self._ws.send_str(await self._out.get())

    async def _read(self) -> None:
        async for message in self._ws:
            received = now()
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            event = json.loads(message.data)
            self._take(received, event)
            self.news.tell()
        self.record.lost = f"the connection was closed with code {self._ws.close_code}"
        self.news.tell()

    def _take(self, received: float, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.output_audio.delta":
                place = Place(event["response_id"], event["item_id"], event["content_index"])
                data = base64.b64decode(event["delta"])
                self.player.push(received, place, np.frombuffer(data, "<i2").astype(np.int16))
            case "input_audio_buffer.speech_started":
                if (stopped := self.player.stop(received)) is not None:
                    place = stopped.place
                    self.record.stops.append((received, place.response_id))
                    self.record.stopped_ms[place.response_id] = stopped.played_ms
                    self.tell(
                        "conversation.item.truncate",
                        item_id=place.item_id,
                        content_index=place.content_index,
                        audio_end_ms=stopped.played_ms,
                    )
            case "response.created":
                self._live.add(event["response"]["id"])
            case "response.done":
                self._live.discard(event["response"]["id"])
        self.record.events.append((received, event))
