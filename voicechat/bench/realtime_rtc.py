"""A realtime client over WebRTC, aiortc as it comes: the server plays, and this listens.

Two moments of a sound are told apart: its *arrival* (the packet that carries it) and its leaving aiortc's jitter
buffer, about 80 ms later, when a player could play it.
"""

from __future__ import annotations

import asyncio
import fractions
import json
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from voicechat.bench.call_client import post_offer
from voicechat.bench.realtime_trace import FRAME_S, LineError, LiveMicrophone, News, Piece, Record, now

RATE = 48_000
FRAME = RATE // 50
_CONNECT_S = 15.0
_WRAP = 1 << 32


class PacedTrack(MediaStreamTrack):
    """Sends a frame of 20 ms every 20 ms of an absolute clock: what ``next_frame`` gives (int16 ``[FRAME]``)."""

    kind = "audio"

    def __init__(self, next_frame: Callable[[], npt.NDArray[np.int16]]) -> None:
        super().__init__()
        self._next_frame = next_frame
        self._origin: float | None = None
        self._frames = 0

    async def recv(self) -> AudioFrame:
        """The next frame, when it is due."""
        if self._origin is None:
            self._origin = now()
        await asyncio.sleep(max(0.0, self._origin + self._frames * FRAME_S - now()))
        frame = AudioFrame.from_ndarray(self._next_frame()[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._frames * FRAME, fractions.Fraction(1, RATE)
        self._frames += 1
        return frame


class ArrivalLog:
    """Stands before aiortc's jitter buffer and notes when each packet came, by its timestamp."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._arrivals: dict[int, float] = {}
        self._origin: int | None = None

    @classmethod
    def attach(cls, receiver: RTCRtpReceiver) -> ArrivalLog:
        """Put one before the buffer of ``receiver``. Raises RuntimeError if this aiortc keeps its buffer elsewhere."""
        attribute = "_RTCRtpReceiver__jitter_buffer"
        if not hasattr(receiver, attribute):
            raise RuntimeError("this version of aiortc keeps its jitter buffer elsewhere")
        log = cls(getattr(receiver, attribute))
        setattr(receiver, attribute, log)
        return log

    def add(self, packet: Any) -> Any:
        """Called by aiortc for each packet; what the jitter buffer says to it."""
        self._arrivals.setdefault(packet.timestamp, now())
        out = self._buffer.add(packet)
        if self._origin is None and out[1] is not None:
            self._origin = out[1].timestamp
        return out

    def of(self, pts: int) -> float | None:
        """When the packet of the decoded frame at ``pts`` came; aiortc counts from the first frame that it decoded."""
        return None if self._origin is None else self._arrivals.get((self._origin + pts) % _WRAP)


class RtcLine:
    """One call; :meth:`open` makes it. Implements :class:`voicechat.bench.realtime_trace.Line`."""

    transport = "webrtc"

    def __init__(self) -> None:
        self.microphone = LiveMicrophone(RATE)
        self.record = Record()
        self.news = News()
        self._live: set[str] = set()
        self._to_play: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: ArrivalLog | None = None
        self._opened = asyncio.Event()
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connection.addTrack(PacedTrack(self._next_frame))
        self._channel = self._connection.createDataChannel("oai-events")
        self._channel.on("open", self._opened.set)
        self._channel.on("message", lambda message: self._take(now(), json.loads(message)))
        self._connection.on("track", lambda track: self._start(self._listen(track)))
        self._connection.on("connectionstatechange", self._on_state)

    @classmethod
    async def open(
        cls, http: aiohttp.ClientSession, base: str, *, headers: dict[str, str], session: dict[str, Any]
    ) -> RtcLine:
        """Call. Raises :class:`LineError`; whatever goes wrong, nothing is left open."""
        line = cls()
        try:
            async with asyncio.timeout(_CONNECT_S):
                await line._connect(http, base, headers, session)
        except TimeoutError:
            await line.close()
            raise LineError(f"the call did not come about within {_CONNECT_S:g} s") from None
        except BaseException:
            await line.close()
            raise
        return line

    async def _connect(
        self, http: aiohttp.ClientSession, base: str, headers: dict[str, str], session: dict[str, Any]
    ) -> None:
        connection = self._connection
        await connection.setLocalDescription(await connection.createOffer())
        answer = await post_offer(http, base, headers, connection.localDescription.sdp, session)
        (transceiver,) = connection.getTransceivers()
        self._arrivals = ArrivalLog.attach(transceiver.receiver)
        await connection.setRemoteDescription(RTCSessionDescription(sdp=answer, type="answer"))
        await self._opened.wait()

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a client event."""
        self._channel.send(json.dumps({"type": kind, **fields}))

    def busy(self) -> bool:
        """True while the server makes or plays a reply."""
        return bool(self._live or self._to_play)

    async def close(self) -> None:
        """Hang up and release everything."""
        await self._connection.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _next_frame(self) -> npt.NDArray[np.int16]:
        pcm = self.microphone.next_frame()
        self.microphone.note(pcm, now())
        self.news.tell()
        return pcm

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            played = now()
            samples = frame.to_ndarray().reshape(-1, len(frame.layout.channels)).mean(axis=1)
            arrived = self._arrivals.of(frame.pts) if self._arrivals is not None else None
            self.record.pieces.append(Piece(played if arrived is None else arrived, played, samples.astype(np.int16)))
            self.news.tell()

    def _take(self, received: float, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.created":
                self._live.add(event["response"]["id"])
            case "response.content_part.added" if event["part"]["type"] == "audio":
                self._to_play.add(event["response_id"])
            case "response.done":
                self._live.discard(event["response"]["id"])
                if event["response"]["status"] in ("cancelled", "failed"):
                    self._to_play.discard(event["response"]["id"])
            case "output_audio_buffer.stopped":
                self._to_play.discard(event["response_id"])
            case "output_audio_buffer.cleared":
                self._to_play.discard(event["response_id"])
                self.record.stops.append((received, event["response_id"]))
        self.record.events.append((received, event))
        self.news.tell()

    def _on_state(self) -> None:
        if self._connection.connectionState in ("closed", "failed"):
            self.record.lost = "the call was cut off"
            self.news.tell()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
