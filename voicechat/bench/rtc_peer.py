"""One end of a call over WebRTC, aiortc as it comes: set up, heard, hung up; what is said and heard is the caller's."""

from __future__ import annotations

import asyncio
import fractions
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

RATE = 48_000
FRAME = RATE // 50
_FRAME_S = 0.02
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
        now = time.perf_counter()
        if self._origin is None:
            self._origin = now
        await asyncio.sleep(max(0.0, self._origin + self._frames * _FRAME_S - now))
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
        self._arrivals.setdefault(packet.timestamp, time.perf_counter())
        out = self._buffer.add(packet)
        if self._origin is None and out[1] is not None:
            self._origin = out[1].timestamp
        return out

    def of(self, pts: int) -> float | None:
        """When the packet of the decoded frame at ``pts`` came; aiortc counts from the first frame that it decoded."""
        return None if self._origin is None else self._arrivals.get((self._origin + pts) % _WRAP)


class Peer:
    """A call. ``on_event`` gets every event and when it came; ``on_sound`` every frame heard: when its packet arrived,
    when it was playable and its samples, float64 mono in the range of int16; ``on_lost`` is called when the call is
    over. Times are on the clock ``time.perf_counter``. ``failure`` is what :meth:`connect` raises."""

    def __init__(
        self,
        microphone: MediaStreamTrack,
        *,
        on_event: Callable[[float, dict[str, Any]], None],
        on_sound: Callable[[float | None, float, npt.NDArray[np.float64]], None],
        on_lost: Callable[[], None],
        failure: type[Exception],
    ) -> None:
        self._on_sound = on_sound
        self._on_lost = on_lost
        self._failure = failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: ArrivalLog | None = None
        self._opened = asyncio.Event()
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connection.addTrack(microphone)
        self._channel = self._connection.createDataChannel("oai-events")
        self._channel.on("open", self._opened.set)
        self._channel.on("message", lambda message: on_event(time.perf_counter(), json.loads(message)))
        self._connection.on("track", lambda track: self._start(self._listen(track)))
        self._connection.on("connectionstatechange", self._on_state)

    async def connect(
        self, http: aiohttp.ClientSession, base: str, *, headers: dict[str, str], session: dict[str, Any]
    ) -> None:
        """Call. Whatever goes wrong, nothing is left open."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._connect(http, base, headers, session)
        except TimeoutError:
            await self.close()
            raise self._failure(f"the call did not come about within {_CONNECT_S:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def _connect(
        self, http: aiohttp.ClientSession, base: str, headers: dict[str, str], session: dict[str, Any]
    ) -> None:
        connection = self._connection
        await connection.setLocalDescription(await connection.createOffer())
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("sdp", connection.localDescription.sdp, content_type="application/sdp")
        form.add_field("session", json.dumps(session), content_type="application/json")
        try:
            async with http.post(f"{base}/v1/realtime/calls", data=form, headers=headers) as response:
                answer = await response.text()
                if response.status != 201:
                    raise self._failure(f"the call was refused: HTTP {response.status} {answer[:300]}")
        except aiohttp.ClientError as error:
            raise self._failure(f"{base} can't be reached: {error}") from None
        (transceiver,) = connection.getTransceivers()
        self._arrivals = ArrivalLog.attach(transceiver.receiver)
        await connection.setRemoteDescription(RTCSessionDescription(sdp=answer, type="answer"))
        await self._opened.wait()

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a client event."""
        self._channel.send(json.dumps({"type": kind, **fields}))

    async def close(self) -> None:
        """Hang up and release everything."""
        await self._connection.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            now = time.perf_counter()
            samples = frame.to_ndarray().reshape(-1, len(frame.layout.channels)).mean(axis=1)
            self._on_sound(self._arrivals.of(frame.pts) if self._arrivals is not None else None, now, samples)

    def _on_state(self) -> None:
        if self._connection.connectionState in ("closed", "failed"):
            self._on_lost()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
