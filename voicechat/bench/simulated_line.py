"""Realtime clients whose server is in the same process and on the same simulated clock: the sessions, the shells and
the playout are the real ones, the network is a delay."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from voicechat.bench.realtime_rtc import RATE as RTC_RATE
from voicechat.bench.realtime_rtc import RtcLine
from voicechat.bench.realtime_trace import FRAME_S, LiveMicrophone, News, Piece, Record, now
from voicechat.bench.realtime_ws import WsLine
from voicechat.bench.simulated import ModelTimes, SimulatedCascade, SimulatedDetectors
from voicechat.contract.sound import EARS_RATE, Pcm
from voicechat.faces.realtime_share import LoopShare
from voicechat.faces.realtime_shell import Shell, detecting, new_id
from voicechat.faces.webrtc_session import VoiceSession
from voicechat.media.playout import Playout
from voicechat.media.resample import Resampler, to_float
from voicechat.media.wire import WireDecoder
from voicechat.realtime.client_events import ClientEvent, parse_event
from voicechat.realtime.outbox import BeginAudio, Event, Place
from voicechat.realtime.session import Session, SessionLimits
from voicechat.realtime.settings import SessionConfig


class _Wire:
    """Delivers in order, each after a delay."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._last = 0.0

    def send(self, deliver: Callable[..., object], *args: object) -> None:
        """Call ``deliver`` with ``args`` when the delay is over."""
        loop = asyncio.get_running_loop()
        self._last = max(loop.time() + self._delay_s, self._last + 1e-9)
        loop.call_at(self._last, deliver, *args)


class _WsEnd:
    """The server's end of a WebSocket: the transport of its shell."""

    carries_audio = False

    def __init__(self, line: SimulatedWs, wire: _Wire) -> None:
        self._line = line
        self._wire = wire

    def send(self, event: Event) -> None:
        self._wire.send(self._line.receive, event)

    def begin_audio(self, begin: BeginAudio) -> None:
        pass

    def play(self, place: Place, pcm: Pcm) -> None:
        delta = base64.b64encode(pcm.astype("<i2").tobytes())
        self.send({"type": "response.output_audio.delta", **place.fields(), "delta": delta})

    def end_audio(self, place: Place) -> None:
        pass

    def clear_audio(self) -> None:
        pass

    def hold_audio(self, held: bool) -> None:
        pass

    def close(self, code: int, reason: str) -> None:
        self._line.record.lost = f"{code} {reason}"

    async def room(self) -> None:
        pass


class SimulatedWs(WsLine):
    """A client over WebSocket. ``config`` is the session's from the beginning."""

    def __init__(
        self, config: SessionConfig, limits: SessionLimits, cascade: SimulatedCascade, detectors: SimulatedDetectors,
        times: ModelTimes,
    ) -> None:  # fmt: skip
        super().__init__(cast(Any, None), FRAME_S)
        session = Session(new_id("sess"), cascade.model, config, detecting(limits, detectors), new_id)
        end = _WsEnd(self, _Wire(times.line_s))
        self._shell = Shell(session, cascade, end, now, detectors=detectors, share=LoopShare())
        self._decoder = WireDecoder("audio/pcm")
        self._up = _Wire(times.uplink_s)
        self._inbox: asyncio.Queue[bytes | ClientEvent] = asyncio.Queue()
        self._shell.open()
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._speak_on())]

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a client event, after what was told before."""
        self._up.send(self._inbox.put_nowait, parse_event(json.dumps({"type": kind, **fields})))

    def receive(self, event: Event) -> None:
        """A server event has come."""
        self._take(now(), event)
        self.news.tell()

    async def close(self) -> None:
        """End the session."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._shell.close("the client is gone")
        await self._shell.wait_closed()

    async def _speak_on(self) -> None:
        origin, count = now(), 0
        while True:
            await asyncio.sleep(max(0.0, origin + count * FRAME_S - now()))
            count += 1
            pcm = self.microphone.next_frame()
            self._up.send(self._inbox.put_nowait, pcm.astype("<i2").tobytes())
            self.microphone.note(pcm, now())
            self.news.tell()

    async def _serve(self) -> None:
        while True:
            came = await self._inbox.get()
            if isinstance(came, bytes):
                await self._shell.on_samples(self._decoder.push(came))
            else:
                self._shell.on_event(came)


class SimulatedRtc(RtcLine):
    """A client over WebRTC, without loss and without a codec: the server plays."""

    def __init__(
        self, config: SessionConfig, limits: SessionLimits, cascade: SimulatedCascade, detectors: SimulatedDetectors,
        times: ModelTimes,
    ) -> None:  # fmt: skip
        self.microphone = LiveMicrophone(RTC_RATE)
        self.record = Record()
        self.news = News()
        self._live: set[str] = set()
        self._to_play: set[str] = set()
        self._playout = Playout()
        down, self._down_audio = _Wire(times.line_s), _Wire(times.line_s)
        self._up = _Wire(times.uplink_s + times.jitter_s)
        self._resampler = Resampler(RTC_RATE, EARS_RATE)
        self._session = VoiceSession(
            new_id("sess"), cascade, config, detecting(limits, detectors), self._playout,
            lambda text: down.send(self._receive, json.loads(text)), self._lost, clock=now, detectors=detectors,
            share=LoopShare(),
        )  # fmt: skip
        self._session.on_open()
        self._clocks = [asyncio.create_task(self._speak_on()), asyncio.create_task(self._play())]

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a client event."""
        self._up.send(self._session.on_message, json.dumps({"type": kind, **fields}))

    async def close(self) -> None:
        """Hang up."""
        for task in self._clocks:
            task.cancel()
        await asyncio.gather(*self._clocks, return_exceptions=True)
        self._session.on_closed("the client is gone")
        await self._session.wait_closed()

    def _receive(self, event: Event) -> None:
        self._take(now(), event)

    def _lost(self, reason: str) -> None:
        self.record.lost = reason

    async def _speak_on(self) -> None:
        origin, count = now(), 0
        rest = np.zeros(0, np.float32)
        while True:
            await asyncio.sleep(max(0.0, origin + count * FRAME_S - now()))
            count += 1
            sound = np.concatenate([rest, self._resampler.push(to_float(self._next_frame()))])
            whole = len(sound) // 320 * 320
            for start in range(0, whole, 320):
                self._up.send(self._session.on_audio, sound[start : start + 320])
            rest = sound[whole:]

    async def _play(self) -> None:
        origin, count = now(), 0
        while True:
            await asyncio.sleep(max(0.0, origin + count * FRAME_S - now()))
            count += 1
            frame = self._playout.next_frame()
            self._session.on_played(frame)
            self._down_audio.send(self._heard, frame.pcm)

    def _heard(self, pcm: npt.NDArray[np.int16]) -> None:
        self.record.pieces.append(Piece(now(), now(), np.repeat(pcm, RTC_RATE // 24_000)))
        self.news.tell()
