"""One voice session: microphone frames and client events in; server events and sound out.

It stands between a transport (:class:`voicechat.media.rtc.Peer` calls the ``on_…`` methods) and the cascade, and
decides who speaks: a reply follows when the user has said something and is silent, and stops when the user speaks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from voicechat.cascade.api import (
    Cascade,
    CascadeError,
    EarsPcm,
    Message,
    ResponseRequest,
    Sampling,
)
from voicechat.faces import webrtc_events as events
from voicechat.faces.webrtc_config import RequestError, SessionConfig, user_message
from voicechat.faces.webrtc_foresight import Foresight
from voicechat.faces.webrtc_history import CHARS_PER_TOKEN, History
from voicechat.faces.webrtc_reply import TurnTimes
from voicechat.faces.webrtc_speaker import Speaker
from voicechat.media.playout import Playout, PlayoutFrame
from voicechat.media.turns import (
    Effect,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    TurnDetector,
    TurnDiscarded,
    TurnEnded,
    TurnSettings,
)
from voicechat.media.vad import FrameVad

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Bounds and defaults of one session. ``eager``: begin the reply at a pause that may be the end of the turn."""

    turns: TurnSettings = field(default_factory=TurnSettings)
    transcribe_timeout: float = 30.0
    max_messages: int = 64
    eager: bool = True
    reply_reserve_tokens: int = 512


class VoiceSession:
    """See the module. ``send`` takes one event as JSON text and may drop it when the client is gone.

    Everything runs on the event loop; :meth:`on_closed` ends it, :meth:`wait_closed` waits for its tasks.
    """

    def __init__(
        self,
        session_id: str,
        cascade: Cascade,
        config: SessionConfig,
        settings: SessionSettings,
        playout: Playout,
        send: Callable[[str], object],
        *,
        expires_at: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = session_id
        self._cascade = cascade
        self._config = config
        self._settings = settings
        self._send = send
        self._expires_at = expires_at
        self._clock = clock
        self._vad = FrameVad(config.detection.threshold)
        self._detector = TurnDetector(config.detection.turn_settings(settings.turns))
        budget = max(256, cascade.model.context_tokens - settings.reply_reserve_tokens) * CHARS_PER_TOKEN
        self.history = History(max_messages=settings.max_messages, max_chars=budget)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._foresight = Foresight(cascade, self._start, self._foresee)
        self._item_id = ""  # of the turn that is being spoken
        self._transcribing = 0
        self._owed: TurnTimes | None = None  # the user said something that has no reply yet
        self._speaker = Speaker(session_id, playout, self.history, self._emit, self._start, clock)
        self._closed = False

    # -- what the transport calls -------------------------------------------------------------------------------------

    def on_open(self) -> None:
        """The event channel is open."""
        self._emit(events.event("session.created", session=self._session_object()))

    def on_audio(self, frame: EarsPcm) -> None:
        """20 ms from the microphone."""
        if not self._closed:
            self._detector.strict = self._speaker.sounding
            self._perform(self._detector.push(frame, self._vad.voiced(frame)))

    def on_starved(self, frames: int) -> None:
        """No sound came for this many frames; an open turn ends by that too."""
        if not self._closed and self._detector.speaking:
            self._perform(self._detector.tick(frames))

    def on_played(self, frame: PlayoutFrame) -> None:
        """A frame of the playout has left."""
        if not self._closed and self._speaker.on_played(frame):
            self._respond_if_owed()

    def on_message(self, text: str) -> None:
        """A client event."""
        if self._closed:
            return
        client_event_id: str | None = None
        try:
            message = json.loads(text)
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise RequestError("an event is an object with a type", code="invalid_event")
            if isinstance(message.get("event_id"), str):
                client_event_id = message["event_id"]
            self._on_client_event(message)
        except ValueError as error:
            code, param = (error.code, error.param) if isinstance(error, RequestError) else ("invalid_json", None)
            self._emit(events.error(str(error), code=code, param=param, client_event_id=client_event_id))

    def on_closed(self, reason: str) -> None:
        """The transport is gone: stop everything. Idempotent."""
        if self._closed:
            return
        log.info("session %s ends: %s", self.id, reason)
        self._speaker.interrupt("client_cancelled")
        self._foresight.drop()
        self._closed = True
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed session have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- turns --------------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SpeechStarted(start_ms):
                    self._item_id = events.new_id("item")
                    self._foresight.drop()
                    self._emit_kind("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self._item_id)
                    self._yield_to_user()
                case SpeechPaused(audio):
                    self._foresight.begin(audio)
                case SpeechResumed():
                    self._foresight.drop()
                case TurnDiscarded(end_ms):
                    self._foresight.drop()
                    self._emit_kind("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=self._item_id)
                    self._emit_kind("input_audio_buffer.cleared")
                    self._respond_if_owed()
                case TurnEnded():
                    self._end_turn(effect)

    def _yield_to_user(self) -> None:
        """Stop the live reply; if nothing of it was heard yet, it is still owed."""
        reply = self._speaker.reply
        if reply is None or not self._config.detection.interrupt_response:
            return
        if not reply.sounding:
            self._owed = self._owed or reply.times
        self._speaker.interrupt("turn_detected")

    def _end_turn(self, turn: TurnEnded) -> None:
        item_id, previous = self._item_id, self.history.last_id
        times = TurnTimes(self._clock(), endpointing_ms=turn.silence_ms)
        self._emit_kind("input_audio_buffer.speech_stopped", audio_end_ms=turn.end_ms, item_id=item_id)
        self._emit_kind("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)
        item = events.message_item(item_id, "user", "completed", [{"type": "input_audio", "transcript": None}])
        for event in events.item_events(item, previous, done=True):
            self._emit(event)
        self.history.add(item_id, "user", None)
        transcribed = self._foresight.transcript(turn.audio)
        seconds = (turn.end_ms - turn.start_ms) / 1000
        self._start(self._finish_turn(item_id, transcribed, times, seconds))

    async def _finish_turn(
        self, item_id: str, transcribed: asyncio.Task[str], times: TurnTimes, seconds: float
    ) -> None:
        """Wait for the ears, then reply."""
        kind = "conversation.item.input_audio_transcription"
        self._transcribing += 1
        try:
            async with asyncio.timeout(self._settings.transcribe_timeout):
                transcript = (await transcribed).strip()
        except (CascadeError, TimeoutError) as error:
            inner = events.cascade_error(error)
            self._emit_kind(f"{kind}.failed", item_id=item_id, content_index=0, error={**inner, "param": None})
        else:
            times.transcript = self._clock()
            self.history.set_text(item_id, transcript)
            usage = {"type": "duration", "seconds": round(seconds, 3)}
            self._emit_kind(f"{kind}.completed", item_id=item_id, content_index=0, transcript=transcript, usage=usage)
            if transcript and self._config.detection.create_response:
                self._owed = times
        finally:
            self._transcribing -= 1
        self._respond_if_owed()

    def _foresee(self, transcript: str) -> ResponseRequest | None:
        """The request that will follow if the turn is over and ``transcript`` is what was said."""
        if not transcript or not self._config.detection.create_response or not self._settings.eager:
            return None
        if self._speaker.reply is not None or self._transcribing:
            return None
        return self._request(Message.text("user", transcript))

    # -- replies ------------------------------------------------------------------------------------------------------

    def _respond_if_owed(self) -> None:
        """Reply to what the user said, unless the user is (or may be) about to say more, or a reply is live."""
        if self._owed is None or self._closed or self._speaker.reply is not None:
            return
        if self._transcribing or self._detector.speaking:
            return
        self._respond(self._owed)

    def _respond(self, times: TurnTimes) -> None:
        self._owed = None
        self._speaker.speak(self._foresight.response(self._request()), times, self._config.voice)

    def _request(self, *more: Message) -> ResponseRequest:
        return ResponseRequest(
            messages=(*self.history.messages(self._config.instructions), *more),
            voice=self._config.voice,
            latency_first=self._config.latency_first,
            sampling=Sampling(max_tokens=self._config.max_output_tokens),
        )

    # -- client events ------------------------------------------------------------------------------------------------

    def _on_client_event(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "session.update":
                config = self._config.updated(
                    message.get("session"), self._cascade.model, voice_locked=self._speaker.spoke
                )
                self._config = config
                self._vad.set_threshold(config.detection.threshold)
                self._detector.settings = config.detection.turn_settings(self._settings.turns)
                self._emit_kind("session.updated", session=self._session_object())
            case "response.cancel":
                if not self._speaker.cancel():
                    raise RequestError("no response is being made", code="response_cancel_not_active")
            case "output_audio_buffer.clear":
                self._speaker.interrupt("client_cancelled")
                self._respond_if_owed()
            case "conversation.item.create":
                self._add_message(message.get("item"))
            case "response.create":
                if message.get("response"):
                    raise RequestError(
                        "fields of a response can't be set yet", code="unsupported_value", param="response"
                    )
                if self._speaker.generating:
                    raise RequestError(
                        "a response is being made already", code="conversation_already_has_active_response"
                    )
                if not self.history.messages(self._config.instructions):
                    raise RequestError("there is nothing to reply to", code="conversation_empty")
                self._speaker.interrupt("client_cancelled")
                self._respond(TurnTimes(self._clock()))
            case kind:
                raise RequestError(f"no such event, or not supported: {kind}", code="unknown_event", param="type")

    def _add_message(self, item: object) -> None:
        item_id, texts = user_message(item)
        item_id = item_id or events.new_id("item")
        previous = self.history.last_id
        self.history.add(item_id, "user", " ".join(texts))
        parts = [{"type": "input_text", "text": text} for text in texts]
        message = events.message_item(item_id, "user", "completed", parts)
        for event in events.item_events(message, previous, done=True):
            self._emit(event)

    # -- small things -------------------------------------------------------------------------------------------------

    def _session_object(self) -> dict[str, Any]:
        return events.session_object(
            self.id,
            model=self._cascade.model.name,
            instructions=self._config.instructions,
            voice=self._config.voice,
            turn_detection=self._config.detection.to_dict(),
            max_output_tokens=self._config.max_output_tokens,
            expires_at=self._expires_at,
        )

    def emit_error(self, message: str, *, kind: str, code: str) -> None:
        """Tell the client of something that is not the fault of one of its events."""
        self._emit(events.error(message, kind=kind, code=code))

    def _emit_kind(self, kind: str, **fields: Any) -> None:
        self._emit(events.event(kind, **fields))

    def _emit(self, event: events.Event) -> None:
        if not self._closed:
            self._send(json.dumps(event, ensure_ascii=False, separators=(",", ":")))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, CascadeError):
            log.error("session %s: a task failed", self.id, exc_info=error)
