"""A WebRTC client for tests: aiortc as it comes, on loopback."""

from __future__ import annotations

import asyncio
import fractions
import json
import time
from collections.abc import Sequence

import aiohttp
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCIceServer, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from voicechat.media.aioice_adapter import use_host_addresses
from voicechat.media.ice import IceSettings

RATE = 48_000
FRAME = RATE // 50


class Microphone(MediaStreamTrack):
    """Sends what :meth:`say` queues, silence otherwise, 20 ms at a time."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.pending = np.zeros(0, dtype=np.float32)
        self.working = asyncio.Event()
        self.working.set()
        self.voiced_until = 0.0
        self._origin: float | None = None
        self._frames = 0

    def say(self, sound: np.ndarray) -> None:
        """Queue float32 sound at 48 kHz."""
        self.pending = np.concatenate([self.pending, sound.astype(np.float32)])

    async def recv(self) -> AudioFrame:
        now = time.monotonic()
        self._origin = self._origin or now
        await asyncio.sleep(max(0.0, self._origin + self._frames * 0.02 - now))
        await self.working.wait()
        part, self.pending = self.pending[:FRAME], self.pending[FRAME:]
        samples = np.zeros(FRAME, dtype=np.int16)
        samples[: len(part)] = np.round(part * 32767)
        if np.abs(samples).max() > 300:
            self.voiced_until = time.monotonic()
        frame = AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._frames * FRAME, fractions.Fraction(1, RATE)
        self._frames += 1
        return frame


class Client:
    """One call. ``events`` came over the channel, ``heard`` (mono, 48 kHz, float32) over the track. ``ice``: which
    addresses of this machine it may use; ``helpers``: STUN and TURN servers."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        base: str,
        ice: IceSettings = IceSettings(interfaces=("none",), loopback=True),  # noqa: B008 (it is frozen)
        helpers: Sequence[RTCIceServer] = (),
    ) -> None:
        use_host_addresses(ice)
        self.http, self.base = http, base
        self.microphone = Microphone()
        self.events: list[dict] = []
        self.arrivals: list[float] = []
        self.heard: list[tuple[float, np.ndarray]] = []
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.location = ""
        self.answer = ""
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task] = set()
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=list(helpers)))
        self.connection.addTrack(self.microphone)
        self.channel = self.connection.createDataChannel("oai-events")
        self.channel.on("open", self.opened.set)
        self.channel.on("close", self.closed.set)
        self.channel.on("message", self._on_message)
        self.connection.on("track", lambda track: self._start(self._listen(track)))
        self.connection.on("connectionstatechange", self._on_state)

    async def connect(self, session: dict | None = None, *, keep_candidates: bool = True) -> Client:
        """Make the call and wait until the channel is open."""
        response = await self.post(session, keep_candidates=keep_candidates)
        assert response.status == 201, await response.text()
        self.location = response.headers["Location"]
        self.answer = await response.text()
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp=self.answer, type="answer"))
        await asyncio.wait_for(self.opened.wait(), 10)
        return self

    async def post(self, session: dict | None = None, *, keep_candidates: bool = True) -> aiohttp.ClientResponse:
        """Offer a call; the HTTP response."""
        await self.connection.setLocalDescription(await self.connection.createOffer())
        sdp = self.connection.localDescription.sdp
        if not keep_candidates:
            sdp = "".join(f"{line}\r\n" for line in sdp.splitlines() if "candidate" not in line)
        url = f"{self.base}/v1/realtime/calls"
        if session is None:
            return await self.http.post(url, data=sdp, headers={"Content-Type": "application/sdp"})
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("sdp", sdp, content_type="application/sdp")
        form.add_field("session", json.dumps(session), content_type="application/json")
        return await self.http.post(url, data=form)

    def tell(self, kind: str, **fields: object) -> None:
        """Send an event."""
        self.channel.send(json.dumps({"type": kind, **fields}))

    def ask(self, text: str) -> None:
        """Send a typed message, and ask for a reply."""
        content = [{"type": "input_text", "text": text}]
        self.tell("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        self.tell("response.create")

    async def wait_for(self, kind: str, count: int = 1, *, within: float = 20) -> dict:
        """The ``count``-th event of ``kind``."""
        async with asyncio.timeout(within), self._news:
            while len(found := self.all(kind)) < count:
                await self._news.wait()
        return found[count - 1]

    def all(self, kind: str) -> list[dict]:
        """Events of ``kind`` so far."""
        return [event for event in self.events if event["type"] == kind]

    def vanish(self) -> None:
        """Be gone without a word: the client's sockets are closed under it."""
        for transport in self.transports():
            transport.close()

    def transports(self) -> list[asyncio.DatagramTransport]:
        """The client's sockets."""
        ice = self.connection.getTransceivers()[0].receiver.transport.transport
        return [protocol.transport for protocol in ice._connection._protocols]

    async def close(self) -> None:
        """Release everything."""
        await self.connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_state(self) -> None:
        if self.connection.connectionState in ("closed", "failed"):
            self.closed.set()

    def _on_message(self, message: str) -> None:
        self.events.append(json.loads(message))
        self.arrivals.append(time.monotonic())
        self._start(self._notify())

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            samples = frame.to_ndarray().reshape(-1, len(frame.layout.channels)).mean(axis=1) / 32768
            self.heard.append((time.monotonic(), samples.astype(np.float32)))

    def _start(self, work) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
