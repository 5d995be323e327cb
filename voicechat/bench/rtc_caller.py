"""A caller over WebRTC, aiortc as it comes: speaks a question in real time and notes when the answer arrives.

Two moments of the answer are told apart: its first audible sample's *arrival* (the packet that carries it) and its
leaving aiortc's jitter buffer, about 80 ms later, when a player could play it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import json
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from voicechat.bench.chat_client import ClientError
from voicechat.bench.measures import first_audible

RATE = 48_000
FRAME = RATE // 50
_FRAME_S = 0.02
_ROOM_LEVEL = 0.0005
_CONNECT_S = 15.0
_WRAP = 1 << 32

Floats = npt.NDArray[np.float32]


class Microphone(MediaStreamTrack):
    """Sends what :meth:`say` queues and a quiet room otherwise, a frame of 20 ms every 20 ms of an absolute clock."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        room = np.random.default_rng(7).standard_normal(RATE).astype(np.float32)
        self._room = room * np.float32(_ROOM_LEVEL)
        self._pending = np.zeros(0, np.float32)
        self._mark: int | None = None
        self._marked: asyncio.Future[float] | None = None
        self._origin: float | None = None
        self._frames = 0

    def say(self, sound: Floats, mark: int) -> asyncio.Future[float]:
        """Queue sound (float32 ``[n]`` at 48 kHz); the time at which its sample ``mark`` is sent."""
        self._mark = len(self._pending) + mark
        self._pending = np.concatenate([self._pending, sound])
        self._marked = asyncio.get_running_loop().create_future()
        return self._marked

    async def recv(self) -> AudioFrame:
        """The next frame, when it is due."""
        now = time.perf_counter()
        if self._origin is None:
            self._origin = now
        await asyncio.sleep(max(0.0, self._origin + self._frames * _FRAME_S - now))
        part, self._pending = self._pending[:FRAME], self._pending[FRAME:]
        start = self._frames % 50 * FRAME
        samples = self._room[start : start + FRAME].copy()
        samples[: len(part)] += part
        if self._mark is not None and self._marked is not None:
            self._mark -= FRAME
            if self._mark < 0:
                if not self._marked.done():
                    self._marked.set_result(time.perf_counter())
                self._mark = None
        pcm = np.clip(np.round(samples * 32767), -32768, 32767).astype(np.int16)
        frame = AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
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


@dataclass(slots=True)
class CallTurn:
    """One answered question. Times on the clock ``time.perf_counter``; ``metadata`` is the response's, as sent."""

    voiced_until: float
    arrived: float | None = None
    playable: float | None = None
    started: float | None = None
    stopped: float | None = None
    heard: str = ""
    text: str = ""
    speech_tokens: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


class Caller:
    """One call; an asynchronous context manager. All methods raise :class:`ClientError`."""

    def __init__(
        self, http: aiohttp.ClientSession, base: str, *, headers: dict[str, str], max_tokens: int | None = None
    ) -> None:
        self._http = http
        self._base = base.rstrip("/")
        self._headers = headers
        self._max_tokens = max_tokens
        self._microphone = Microphone()
        self._events: asyncio.Queue[tuple[float, dict[str, Any]]] = asyncio.Queue()
        self._audible: asyncio.Queue[tuple[float | None, float]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: ArrivalLog | None = None
        self._opened = asyncio.Event()
        self._location = ""
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connection.addTrack(self._microphone)
        self._channel = self._connection.createDataChannel("oai-events")
        self._channel.on("open", self._opened.set)
        self._channel.on("message", self._on_message)
        self._connection.on("track", lambda track: self._start(self._listen(track)))
        self._connection.on("connectionstatechange", self._on_state)

    async def __aenter__(self) -> Caller:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._connect()
        except TimeoutError:
            await self.close()
            raise ClientError(f"the call did not come about within {_CONNECT_S:g} s") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connect(self) -> None:
        connection = self._connection
        await connection.setLocalDescription(await connection.createOffer())
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("sdp", connection.localDescription.sdp, content_type="application/sdp")
        session = {"type": "realtime", "max_output_tokens": self._max_tokens or "inf"}
        form.add_field("session", json.dumps(session), content_type="application/json")
        try:
            url = f"{self._base}/v1/realtime/calls"
            async with self._http.post(url, data=form, headers=self._headers) as response:
                answer = await response.text()
                if response.status != 201:
                    raise ClientError(f"the call was refused: HTTP {response.status} {answer[:300]}")
                self._location = response.headers.get("Location", "")
        except aiohttp.ClientError as error:
            raise ClientError(f"{self._base} can't be reached: {error}") from None
        (transceiver,) = connection.getTransceivers()
        self._arrivals = ArrivalLog.attach(transceiver.receiver)
        await connection.setRemoteDescription(RTCSessionDescription(sdp=answer, type="answer"))
        await self._opened.wait()

    async def ask(self, sound: Floats, mark: int, timeout_s: float) -> CallTurn:
        """Say ``sound`` (float32 ``[n]`` at 48 kHz, last voiced at sample ``mark``), hear the answer to its end."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._events.empty():
                    self._events.get_nowait()
                marked = self._microphone.say(sound, mark)
                turn = CallTurn(await marked)
                while not self._audible.empty():  # what was heard before the question was over is no answer to it
                    self._audible.get_nowait()
                await self._follow(turn)
                return turn
        except TimeoutError:
            raise ClientError(f"no whole answer within {timeout_s:g} s") from None

    async def _follow(self, turn: CallTurn) -> None:
        """Take events until the answer has been played."""
        done = False
        while turn.stopped is None:
            if turn.arrived is None and not self._audible.empty():
                turn.arrived, turn.playable = self._audible.get_nowait()
            arrival, event = await self._events.get()
            match event["type"]:
                case "output_audio_buffer.started":
                    turn.started = arrival
                case "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
                    turn.stopped = arrival
                case "conversation.item.input_audio_transcription.completed":
                    turn.heard = event["transcript"]
                    if not turn.heard:
                        raise ClientError("the question was not understood")
                case "response.output_audio_transcript.delta":
                    turn.text += event["delta"]
                case "response.done":
                    done = _take_response(turn, event["response"])
                case "conversation.item.input_audio_transcription.failed" | "error" | "closed":
                    raise ClientError(event["error"]["message"])
            if done and not turn.speech_tokens:
                raise ClientError(f"the answer has no sound: {turn.text!r}")
        if turn.arrived is None:  # the last frames may still be on their way through the jitter buffer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    turn.arrived, turn.playable = await self._audible.get()

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
            samples = frame.to_ndarray().reshape(-1, len(frame.layout.channels)).mean(axis=1) / 32768
            if first_audible(samples.astype(np.float32)) is not None:
                arrived = self._arrivals.of(frame.pts) if self._arrivals is not None else None
                self._audible.put_nowait((arrived, now))

    def _on_message(self, message: str | bytes) -> None:
        event = json.loads(message)
        if event["type"] == "conversation.item.input_audio_transcription.failed":
            event["error"]["message"] = f"the question could not be transcribed: {event['error']['message']}"
        self._events.put_nowait((time.perf_counter(), event))

    def _on_state(self) -> None:
        if self._connection.connectionState in ("closed", "failed"):
            lost = {"type": "closed", "error": {"message": "the call was cut off"}}
            self._events.put_nowait((time.perf_counter(), lost))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _take_response(turn: CallTurn, response: dict[str, Any]) -> bool:
    if response["status"] not in ("completed", "incomplete"):
        details = response.get("status_details") or {}
        reason = (details.get("error") or {}).get("message") or details.get("reason") or response["status"]
        raise ClientError(f"the answer broke off: {reason}")
    turn.metadata = dict(response.get("metadata") or {})
    usage = response.get("usage") or {}
    turn.speech_tokens = int(usage.get("output_token_details", {}).get("audio_tokens", 0))
    return True
