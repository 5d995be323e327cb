"""A caller over WebRTC, aiortc as it comes: speaks a question in real time and notes when the answer arrives.

Two moments of the answer are told apart: its first audible sample's *arrival* (the packet that carries it) and its
leaving aiortc's jitter buffer, about 80 ms later, when a player could play it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from voicechat.bench.chat_client import ClientError
from voicechat.bench.measures import first_audible
from voicechat.bench.rtc_peer import FRAME, RATE, PacedTrack, Peer

_ROOM_LEVEL = 0.0005

Floats = npt.NDArray[np.float32]


class Microphone:
    """Says what :meth:`say` queues and is a quiet room otherwise, in frames of 20 ms at 48 kHz."""

    def __init__(self) -> None:
        room = np.random.default_rng(7).standard_normal(RATE).astype(np.float32)
        self._room = room * np.float32(_ROOM_LEVEL)
        self._pending = np.zeros(0, np.float32)
        self._mark: int | None = None
        self._marked: asyncio.Future[float] | None = None
        self._frames = 0

    def say(self, sound: Floats, mark: int) -> asyncio.Future[float]:
        """Queue sound (float32 ``[n]`` at 48 kHz); the time at which its sample ``mark`` is sent."""
        self._mark = len(self._pending) + mark
        self._pending = np.concatenate([self._pending, sound])
        self._marked = asyncio.get_running_loop().create_future()
        return self._marked

    def next_frame(self) -> npt.NDArray[np.int16]:
        """The frame that is sent now: int16 ``[FRAME]``."""
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
        self._frames += 1
        return np.clip(np.round(samples * 32767), -32768, 32767).astype(np.int16)


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
        self._session = {"type": "realtime", "max_output_tokens": max_tokens or "inf"}
        self._microphone = Microphone()
        self._events: asyncio.Queue[tuple[float, dict[str, Any]]] = asyncio.Queue()
        self._audible: asyncio.Queue[tuple[float | None, float]] = asyncio.Queue()
        self._peer = Peer(
            PacedTrack(self._microphone.next_frame),
            on_event=self._on_event, on_sound=self._on_sound, on_lost=self._on_lost, failure=ClientError,
        )  # fmt: skip

    async def __aenter__(self) -> Caller:
        await self._peer.connect(self._http, self._base, headers=self._headers, session=self._session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up and release everything."""
        await self._peer.close()

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

    def _on_sound(self, arrived: float | None, playable: float, samples: npt.NDArray[np.float64]) -> None:
        if first_audible((samples / 32768).astype(np.float32)) is not None:
            self._audible.put_nowait((arrived, playable))

    def _on_event(self, now: float, event: dict[str, Any]) -> None:
        if event["type"] == "conversation.item.input_audio_transcription.failed":
            event["error"]["message"] = f"the question could not be transcribed: {event['error']['message']}"
        self._events.put_nowait((now, event))

    def _on_lost(self) -> None:
        lost = {"type": "closed", "error": {"message": "the call was cut off"}}
        self._events.put_nowait((time.perf_counter(), lost))


def _take_response(turn: CallTurn, response: dict[str, Any]) -> bool:
    if response["status"] not in ("completed", "incomplete"):
        details = response.get("status_details") or {}
        reason = (details.get("error") or {}).get("message") or details.get("reason") or response["status"]
        raise ClientError(f"the answer broke off: {reason}")
    turn.metadata = dict(response.get("metadata") or {})
    usage = response.get("usage") or {}
    turn.speech_tokens = int(usage.get("output_token_details", {}).get("audio_tokens", 0))
    return True
