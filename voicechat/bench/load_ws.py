"""The load benchmark's users over WebSocket: each turn is a session of its own, spoken to in real time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from voicechat.bench.chat_client import ClientError
from voicechat.bench.measures import first_audible, last_voiced, play, real_time_factor
from voicechat.bench.turn import Floats, Question, Turn
from voicechat.media.resample import to_float, to_pcm

RATE = 24_000
FRAME_S = 0.04
_FRAME = round(RATE * FRAME_S)
_CONNECT_S = 15.0


@dataclass(slots=True)
class _Heard:
    """What came of one answer; times are of ``perf_counter``."""

    voiced_until: float
    text: str = ""
    heard: str | None = None
    chunks: list[tuple[float, float]] = field(default_factory=list)
    audible: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    started: float | None = None


class WsAsker:
    """Says a question in frames of 40 ms, then silence, until the answer is there. Implements ``askers.Asker``.

    ``silence_ms`` is the pause after which the server takes a turn to be over.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        base: str,
        *,
        headers: dict[str, str],
        max_tokens: int | None,
        silence_ms: int,
        timeout_s: float,
    ) -> None:
        self._http = http
        self._base = base
        self._headers = headers
        self._timeout_s = timeout_s
        detection = {"type": "server_vad", "silence_duration_ms": silence_ms}
        self._session = {
            "type": "realtime",
            "max_output_tokens": max_tokens or "inf",
            "audio": {"input": {"turn_detection": detection, "transcription": {"model": "whisper-1"}}},
        }

    async def ask(self, question: Question) -> Turn:
        """One session with one turn; setting it up is not timed."""
        turn = Turn(question.text)
        if question.sound is None:
            raise ValueError("a question over WebSocket needs a sound")
        try:
            async with asyncio.timeout(self._timeout_s):
                heard = await self._ask(question.sound)
        except TimeoutError:
            turn.error = f"no whole answer within {self._timeout_s:g} s"
            return turn
        except aiohttp.ClientError as error:
            turn.error = f"{self._base} can't be reached: {error}"
            return turn
        except ClientError as error:
            turn.error = str(error)
            return turn
        _fill(turn, heard)
        return turn

    async def close(self) -> None:
        """Nothing is kept between turns."""

    async def _ask(self, sound: Floats) -> _Heard:
        mark = last_voiced(sound, RATE)
        if mark is None:
            raise ClientError("the sound of the question is silence")
        url = f"{self._base}/v1/realtime?model=any"
        async with self._http.ws_connect(url, headers=self._headers, max_msg_size=0) as ws:
            await ws.send_json({"type": "session.update", "session": self._session})
            async with asyncio.timeout(_CONNECT_S):
                while (await _event(ws))[1]["type"] != "session.updated":
                    pass
            marked: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            speaking = asyncio.create_task(_speak(ws, to_pcm(sound), mark, marked))
            try:
                return await _listen(ws, marked)
            finally:
                speaking.cancel()
                with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError, ConnectionError):
                    await speaking


async def _event(ws: aiohttp.ClientWebSocketResponse) -> tuple[float, dict[str, Any]]:
    """The next event and its arrival. Raises ClientError if there is none or it reports an error."""
    message = await ws.receive()
    now = time.perf_counter()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ClientError(f"the connection was closed with code {ws.close_code}")
    event = json.loads(message.data)
    if event["type"] == "error":
        raise ClientError(event["error"]["message"])
    return now, event


async def _speak(
    ws: aiohttp.ClientWebSocketResponse, pcm: np.ndarray[Any, Any], mark: int, marked: asyncio.Future[float]
) -> None:
    """Send the question in real time, then silence for ever. ``marked`` gets the time of its last voiced sample."""
    origin, place = time.perf_counter(), 0
    while True:
        frame = pcm[place : place + _FRAME]
        if len(frame) < _FRAME:
            frame = np.concatenate((frame, np.zeros(_FRAME - len(frame), np.int16)))
        data = base64.b64encode(frame.astype("<i2").tobytes()).decode()
        await ws.send_str(f'{{"type":"input_audio_buffer.append","audio":"{data}"}}')
        if not marked.done() and place <= mark < place + _FRAME:
            marked.set_result(time.perf_counter())
        place += _FRAME
        await asyncio.sleep(max(0.0, origin + place / RATE - time.perf_counter()))


async def _listen(ws: aiohttp.ClientWebSocketResponse, marked: asyncio.Future[float]) -> _Heard:
    """Take events until the response to the whole question is done."""
    heard = _Heard(0.0)
    while True:
        now, event = await _event(ws)
        match event["type"]:
            case "conversation.item.input_audio_transcription.completed":
                heard.heard = event["transcript"]
            case "input_audio_buffer.speech_started":  # it goes on: what was answered so far was too soon
                heard = _Heard(0.0, heard=heard.heard)
            case "response.created":
                heard.started = now
            case "response.output_audio_transcript.delta":
                heard.text += event["delta"]
            case "response.output_audio.delta":
                sound = np.frombuffer(base64.b64decode(event["delta"]), "<i2")
                if heard.audible is None and first_audible(to_float(sound.astype(np.int16))) is not None:
                    heard.audible = now
                heard.chunks.append((now, len(sound) / RATE))
            case "response.done":
                response = event["response"]
                if response["status"] == "cancelled":
                    continue
                if response["status"] not in ("completed", "incomplete"):
                    raise ClientError(f"the answer broke off: {response['status']}")
                if marked.done():
                    heard.voiced_until = marked.result()
                    heard.metadata = dict(response.get("metadata") or {})
                    return heard


def _fill(turn: Turn, heard: _Heard) -> None:
    turn.answer, turn.heard = heard.text, heard.heard
    turn.audio_s = sum(seconds for _, seconds in heard.chunks)
    if not heard.chunks:
        turn.error = f"the answer has no sound: {heard.text!r}"
        return
    first, last = heard.chunks[0][0], heard.chunks[-1][0]
    turn.note(
        voice_to_voice_s=heard.audible - heard.voiced_until if heard.audible is not None else None,
        ttfa_s=first - heard.started if heard.started is not None else None,
        rtf=real_time_factor(last - (heard.started or first), turn.audio_s),
    )
    turn.stages = {
        name.removesuffix("_ms"): float(value) / 1000 for name, value in heard.metadata.items() if name.endswith("_ms")
    }
    turn.continuity = play(heard.chunks)
