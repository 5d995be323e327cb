"""One WebRTC call's session: the peer's microphone, event channel and playout clock, joined to the realtime core."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from voicechat.contract.cascade import Cascade
from voicechat.contract.sound import PCM_RATE, EarsPcm, Pcm
from voicechat.faces.realtime_share import LoopShare
from voicechat.faces.realtime_shell import TRANSCRIBE_TIMEOUT_S, Shell, new_id
from voicechat.faces.sideband import Listener
from voicechat.media.detectors import Detectors
from voicechat.media.playout import Playout, PlayoutFrame
from voicechat.realtime.client_events import ClientEvent, parse_event
from voicechat.realtime.errors import ClientError
from voicechat.realtime.outbox import BeginAudio, Event, Place
from voicechat.realtime.session import Session, SessionLimits
from voicechat.realtime.settings import SessionConfig

MAX_MESSAGE = 256 * 1024
"""Longer messages are answered with an error. aiortc tells clients the same bound."""

CLOSE_NORMAL = 1000

MAX_QUEUED_SAMPLES = 60 * PCM_RATE
"""Sound made ahead of what is played, at most; the cascade waits beyond it."""


class VoiceSession:
    """Takes the calls of :class:`voicechat.media.rtc.Peer`, and is the transport of its own shell.

    ``send`` takes one event as JSON text and may drop it when the client is gone; ``end`` begins to close the call.
    ``limits`` must say that the server plays. :meth:`on_closed` ends the session, :meth:`wait_closed` waits for its
    tasks.
    """

    carries_audio = False
    """Sound does not fit into the messages of a data channel; it goes over the track."""

    def __init__(
        self,
        session_id: str,
        cascade: Cascade,
        config: SessionConfig,
        limits: SessionLimits,
        playout: Playout,
        send: Callable[[str], object],
        end: Callable[[str], object],
        *,
        expires_at: int = 0,
        clock: Callable[[], float] = time.monotonic,
        transcribe_timeout: float = TRANSCRIBE_TIMEOUT_S,
        detectors: Detectors | None = None,
        share: LoopShare | None = None,
    ) -> None:
        if not limits.server_plays:
            raise ValueError("over WebRTC the server plays: limits.server_plays must be set")
        self.id = session_id
        self._playout = playout
        self._send = send
        self._end = end
        self._listeners: list[Listener] = []
        self._opened = False
        self._session = Session(session_id, cascade.model, config, limits, new_id, expires_at=expires_at)
        self._shell = Shell(self._session, cascade, self, clock, transcribe_timeout, detectors, share)

    @property
    def config(self) -> SessionConfig:
        """The settings in force."""
        return self._session.config

    # -- what the peer calls ------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        """The event channel is open; again if the client has made its connection anew."""
        if self._opened:
            self._send(_json(self._created()))
        else:
            self._opened = True
            self._shell.open()

    def on_message(self, text: str) -> None:
        """A client event."""
        if len(text) > MAX_MESSAGE:
            message = f"The message is longer than {MAX_MESSAGE} characters."
            self._shell.on_event(ClientEvent(None, None, ClientError(message, code="message_too_long")))
        else:
            self._shell.on_event(parse_event(text))

    def on_event(self, event: ClientEvent) -> None:
        """A client event that came another way."""
        self._shell.on_event(event)

    def attach(self, listener: Listener) -> None:
        """Tell ``listener`` of the session as it is, and of all events that follow."""
        self._listeners.append(listener)
        listener.send(self._created())

    def detach(self, listener: Listener) -> None:
        """Tell it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def on_audio(self, frame: EarsPcm) -> None:
        """20 ms from the microphone."""
        self._shell.on_frame(frame)

    def on_starved(self, frames: int) -> None:
        """No sound came for this many frames."""
        self._shell.on_starved(frames)

    def on_played(self, frame: PlayoutFrame) -> None:
        """A frame of the playout has left."""
        self._shell.on_sent(frame.pcm)
        if self._playout.active or frame.drained:
            self._shell.on_played(self._playout.played, started=frame.started, drained=frame.drained)

    def on_rewound(self) -> None:
        """The client is away: what it did not hear is to be played yet."""
        self._shell.on_played(self._playout.played, started=False, drained=False)

    def on_closed(self, reason: str) -> None:
        """The peer is gone: stop everything. Idempotent."""
        self._shell.close(reason)
        self._playout.clear()
        for listener in self._listeners:
            listener.close(CLOSE_NORMAL, reason)

    def going_down(self) -> None:
        """The server will soon end this session: tell the client."""
        if self._opened:
            self._shell.going_down()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed session have ended."""
        await self._shell.wait_closed()

    # -- what the shell calls -----------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        """Send an event over the channel, and to all who listen."""
        self._send(_json(event))
        for listener in self._listeners:
            listener.send(event)

    def begin_audio(self, begin: BeginAudio) -> None:
        """A part begins: a new stream of the playout."""
        self._playout.begin()

    def play(self, place: Place, pcm: Pcm) -> None:
        """More of the stream."""
        self._playout.push(pcm)

    def end_audio(self, place: Place) -> None:
        """The stream has no more sound."""
        self._playout.finish()

    def clear_audio(self) -> None:
        """Silence, at once."""
        self._playout.clear()

    def hold_audio(self, held: bool) -> None:
        """Silence for a moment, or on from the very sample."""
        if held:
            self._playout.hold()
        else:
            self._playout.release()

    def close(self, code: int, reason: str) -> None:
        """End the call."""
        self._end(reason)

    async def room(self) -> None:
        """Wait while a minute of sound is queued."""
        if (ahead := self._playout.queued - MAX_QUEUED_SAMPLES) > 0:
            await asyncio.sleep(ahead / PCM_RATE)

    def _created(self) -> Event:
        return {"type": "session.created", "event_id": new_id("event"), "session": self._session.to_dict()}


def _json(event: Event) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
