"""One realtime session as a pure state machine: what a transport, the VAD, the cascade and a clock tell it comes in;
server events and effects come out.

Every method returns what is to be sent and done, in order. Time is what :meth:`Session.tick` says. Nothing here waits,
and nothing that comes late does harm: output of a response that was stopped, or text for an item that is gone, is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import CascadeError
from voicechat.contract.events import Event
from voicechat.contract.sound import EARS_RATE, EarsPcm
from voicechat.realtime import turn_detector as turns
from voicechat.realtime.client_events import ClientEvent
from voicechat.realtime.commands import Commands
from voicechat.realtime.conversation import CHARS_PER_TOKEN, SILENT, Conversation
from voicechat.realtime.ears import Ears, Waiting
from voicechat.realtime.errors import ClientError, cascade_error
from voicechat.realtime.items import Item, Part
from voicechat.realtime.listening import TRANSCRIPTION, Listening
from voicechat.realtime.outbox import Clip, Close, Outbox, Output
from voicechat.realtime.playback import Playback
from voicechat.realtime.replies import Replies
from voicechat.realtime.response import Times
from voicechat.realtime.settings import ResponseSpec, SessionConfig
from voicechat.realtime.turn_detector import (
    SpeechDismissed,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    SpeechSuspected,
    TurnDiscarded,
    TurnEnded,
    TurnSettings,
)
from voicechat.realtime.turns import Turns, seconds_of

CLOSE_EXPIRED = 1001
"""WebSocket close code of a session that has expired: going away."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds and defaults of one session. ``eager``: begin the reply at a pause that may be the end of the turn.

    ``server_plays``: the server plays the sound (WebRTC) and knows to the sample what was heard. ``judged``: there is a
    detector that judges by the sound whether a turn is over.
    """

    turns: TurnSettings = field(default_factory=TurnSettings)
    max_messages: int = 64
    max_items: int = 512
    eager: bool = True
    reply_reserve_tokens: int = 512
    max_seconds: float = 3600.0
    warn_seconds: float = 60.0
    server_plays: bool = False
    judged: bool = False


class Session:
    """See the module. ``ids(prefix)`` makes unique identifiers; ``expires_at`` is a Unix time, only shown."""

    def __init__(
        self, session_id: str, model: ModelInfo, config: SessionConfig, limits: SessionLimits,
        ids: Callable[[str], str], *, expires_at: int = 0,
    ) -> None:  # fmt: skip
        self.id = session_id
        self.model = model
        self.config = config
        self.limits = limits
        self.expires_at = expires_at
        self.out = Outbox(ids)
        budget = max(256, model.context_tokens - limits.reply_reserve_tokens) * CHARS_PER_TOKEN
        self.conversation = Conversation(
            self.out, max_chars=budget, max_messages=limits.max_messages, max_items=limits.max_items
        )
        self.playback = Playback(self.out, self.conversation, server=limits.server_plays)
        self.ears = Ears(self.out)
        self.replies = Replies(self.out, self.conversation, self.playback, lambda: self.ears.pending)
        self.turns = Turns(limits.turns, config.detection)
        self._listening = Listening(self)
        self._commands = Commands(self)
        self.item_id = ""
        """Of the turn that is being spoken."""
        self.nothing = False
        """The turn that is open only says that the user is listening."""
        self.owed: Times | None = None
        """The user said something that has no reply yet."""
        self._opened: float | None = None
        self._warned = False
        self._quiet_since: float | None = None
        self._asked_again = True  # the idle timeout waits until somebody has spoken
        self._closed = False

    # -- the transport ------------------------------------------------------------------------------------------------

    def open(self) -> list[Output]:
        """The client is there."""
        self._opened = self.out.now
        self.out.send("session.created", session=self.to_dict())
        conversation = {"id": self.replies.conversation_id, "object": "realtime.conversation"}
        self.out.send("conversation.created", conversation=conversation)
        return self.out.take()

    def tick(self, now: float) -> list[Output]:
        """Time has come to ``now`` seconds; never goes back."""
        self.out.now = max(now, self.out.now)
        if not self._closed:
            self._check_expiry()
            self._check_idle()
        return self.out.take()

    def on_event(self, event: ClientEvent) -> list[Output]:
        """The client sent an event. Sound is not taken from here, but frame by frame by :meth:`on_frame`."""
        if self._closed:
            return []
        try:
            if event.error is not None:
                raise event.error
            if event.body is not None:
                self._commands.obey(event.body)
        except ClientError as error:
            self.out.error(error.message, code=error.code, param=error.param, client_event_id=event.id)
        return self.out.take()

    def on_frame(self, frame: EarsPcm, voiced: bool) -> list[Output]:
        """20 ms from the microphone (float32, shape ``[320]``), and whether somebody speaks in it.

        What comes before :meth:`open` is not heard: the client could not be told of it.
        """
        if not self._closed and self._opened is not None:
            self.perform(self.turns.push(frame, voiced, strict=self.playback.sounding))
            if self.turns.speaking:
                self._listening.frame()
        return self.out.take()

    def on_starved(self, frames: int) -> list[Output]:
        """No sound came from the microphone for this many frames."""
        if not self._closed:
            self.perform(self.turns.starve(frames))
        return self.out.take()

    def on_played(self, played: int, *, started: bool = False, drained: bool = False) -> list[Output]:
        """A frame has left the server's playout clock: ``played`` samples of the current sound in all."""
        if not self._closed:
            reply = self.replies.current
            if started and reply is not None:
                reply.times.first_sound = self.out.now
            if self.playback.on_played(played, started=started, drained=drained):
                self.reply_if_owed()
        return self.out.take()

    def close(self) -> list[Output]:
        """The client is gone: stop everything. Idempotent."""
        if self._closed:
            return []
        self.replies.interrupt("client_cancelled")
        self.replies.drop_draft()
        self._listening.end()
        self.ears.close()
        self._closed = True
        return self.out.take()

    # -- the ears and the cascade -------------------------------------------------------------------------------------

    def on_text(self, job: int, text: str) -> list[Output]:
        """The text of a sound that was to be transcribed."""
        if not self._closed:
            text = text.strip()
            waiting = self.ears.on_text(job, text)
            if waiting is not None:
                self._understood(waiting, text)
            else:
                self._listening.heard(job, text)
        return self.out.take()

    def on_text_failed(self, job: int, error: CascadeError | TimeoutError) -> list[Output]:
        """A sound could not be transcribed."""
        if not self._closed:
            self._listening.failed(job)
        if not self._closed and (waiting := self.ears.on_failed(job)) is not None:
            if self.config.transcription is not None:
                inner = {**cascade_error(error), "param": None}
                self.out.send(
                    f"{TRANSCRIPTION}.failed", item_id=waiting.item.id, content_index=waiting.part, error=inner
                )
            self.proceed()
        return self.out.take()

    def on_judged(self, job: int, probability: float | None) -> list[Output]:
        """How likely the turn is over by its sound; None if it could not be judged."""
        if not self._closed:
            self._listening.judged(job, probability)
        return self.out.take()

    def on_cascade(self, generation: int, event: Event) -> list[Output]:
        """Something came of a response."""
        if not self._closed:
            self.replies.on_event(generation, event)
            self._listening.drafted()
            self.reply_if_owed()
        return self.out.take()

    def on_cascade_failed(self, generation: int, error: CascadeError) -> list[Output]:
        """A response can't go on."""
        if not self._closed:
            self.replies.on_failed(generation, error)
            self._listening.drafted()
            self.reply_if_owed()
        return self.out.take()

    # -- turns --------------------------------------------------------------------------------------------------------

    def perform(self, effects: list[turns.Effect]) -> None:
        """Follow what the turn detector says."""
        for effect in effects:
            match effect:
                case SpeechStarted(start_ms):
                    self.item_id = self.out.new_id("item")
                    self.drop_guess()
                    self._asked_again = False
                    self.out.send("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self.item_id)
                    self.nothing = False
                    self._listening.begin()
                    if not self.playback.held:
                        self._make_way()
                case SpeechSuspected():
                    if self.config.detection is not None and self.config.detection.interrupt_response:
                        self.playback.hold()
                case SpeechDismissed():
                    self.playback.release()
                case SpeechPaused(audio):
                    self._listening.pause(audio)
                case SpeechResumed():
                    self.drop_guess()
                    if self.nothing:
                        self.nothing = False
                        self.yield_to_user()
                case TurnDiscarded(end_ms):
                    self._discard_turn(end_ms)
                case TurnEnded() if self.nothing:
                    self._discard_turn(effect.end_ms)
                case TurnEnded():
                    if self.playback.held or self.replies.suspended:
                        self.yield_to_user()
                    self._end_turn(effect)

    def proceed(self) -> None:
        """Something that a response may have waited for has come."""
        self.replies.proceed()
        self.reply_if_owed()

    def reply_if_owed(self) -> None:
        """Reply to what the user said, unless the user is (or may be) about to say more, or a reply is live."""
        if self.owed is None or not self.replies.idle or self.ears.pending or self.turns.speaking:
            return
        times, self.owed = self.owed, None
        self.replies.create(self.spec(), times)

    def settle(self) -> None:
        """A response was asked for: no other is owed."""
        self.owed = None

    def drop_guess(self) -> None:
        """What was begun ahead is void."""
        self._listening.resume()
        self.ears.drop_guess()
        self.replies.drop_draft()

    @property
    def weighing(self) -> bool:
        """True while a reply waits to learn whether what is being said is an interruption."""
        return self.playback.held or self.replies.resumable

    def _make_way(self) -> None:
        """Somebody speaks. Where the client plays, it stops now; what is left of the reply is kept until it is known
        whether that was an interruption."""
        detection = self.config.detection
        if detection is None or not detection.interrupt_response:
            return
        if self.limits.server_plays or not self.replies.suspend():
            self.yield_to_user()

    def yield_to_user(self) -> None:
        """Stop the live reply; if nothing of it was heard yet, it is still owed."""
        self.replies.give_up()
        detection, reply = self.config.detection, self.replies.current
        if detection is None or not detection.interrupt_response or reply is None:
            self.playback.release()
            return
        heard = self.playback.sounding or (not self.limits.server_plays and reply.spoken > 0)
        if not heard and reply.spec.in_conversation and reply.inputs is None:
            self.owed = self.owed or reply.times
        self.replies.interrupt("turn_detected")

    def _discard_turn(self, end_ms: int) -> None:
        """It was no turn: a reply that waited for it goes on."""
        self.nothing = False
        self.drop_guess()
        self._listening.end()
        self.playback.release()
        self.out.send("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=self.item_id)
        self.out.send("input_audio_buffer.cleared")
        self.replies.resume()
        self.reply_if_owed()

    def _end_turn(self, turn: TurnEnded) -> None:
        item_id, self.item_id = self.item_id or self.out.new_id("item"), ""
        captions = self._listening.end()
        times = Times(self.out.now, endpointing_ms=turn.silence_ms)
        detected = self.config.detection
        if detected is not None:
            self.out.send("input_audio_buffer.speech_stopped", audio_end_ms=turn.end_ms, item_id=item_id)
        sound = Clip(turn.audio, EARS_RATE)
        item = Item(item_id, parts=[Part("input_audio", None, [sound])])
        self.out.send("input_audio_buffer.committed", item_id=item_id, previous_item_id=self.conversation.last_id)
        self.conversation.insert(item)
        replies = detected is not None and detected.create_response
        waiting = Waiting(item, 0, seconds_of(turn.audio), times if replies else None, captions)
        if (text := self.ears.hear(waiting, sound)) is not None:
            self._understood(waiting, text)

    def _understood(self, waiting: Waiting, text: str) -> None:
        """The text of an item's sound has come."""
        item, index = waiting.item, waiting.part
        item.parts[index].text = text
        if self.config.transcription is not None and self.conversation.get(item.id) is item:
            place = {"item_id": item.id, "content_index": index}
            if piece := waiting.captions.finish(text):
                self.out.send(f"{TRANSCRIPTION}.delta", **place, delta=piece)
            usage = {"type": "duration", "seconds": waiting.seconds}
            self.out.send(f"{TRANSCRIPTION}.completed", **place, transcript=text, usage=usage)
        if waiting.times is not None and text:
            waiting.times.transcript = self.out.now
            self.owed = waiting.times
        self.proceed()

    # -- the clock ----------------------------------------------------------------------------------------------------

    def _check_expiry(self) -> None:
        if self._opened is None:
            return
        left = self._opened + self.limits.max_seconds - self.out.now
        if left <= 0:
            self.out.error("The session has expired.", code="session_expired")
            self.replies.interrupt("client_cancelled")
            self.drop_guess()
            self.ears.close()
            self._closed = True
            self.out.add(Close(CLOSE_EXPIRED, "session_expired"))
        elif left <= self.limits.warn_seconds and not self._warned:
            # The protocol has no event for a warning, and some clients take any error for the end. The session with its
            # ``expires_at`` tells those that care, and harms none.
            self._warned = True
            self.out.send("session.updated", session=self.to_dict())

    def _check_idle(self) -> None:
        detection = self.config.detection
        limit = None if detection is None else detection.idle_timeout_ms
        waiting = self.owed is not None or self.ears.pending or self.turns.speaking or self.playback.sounding
        if limit is None or waiting or not self.replies.idle or self._asked_again:
            self._quiet_since = None
            return
        if self._quiet_since is None:
            self._quiet_since = self.out.now
        if (self.out.now - self._quiet_since) * 1000 < limit:
            return
        self._asked_again = True
        end = self.turns.now_ms
        item = Item(self.out.new_id("item"), parts=[Part("input_audio", "")], told=SILENT)
        self.out.send(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=max(0, end - limit),
            audio_end_ms=end,
            item_id=item.id,
        )
        self.out.send("input_audio_buffer.committed", item_id=item.id, previous_item_id=self.conversation.last_id)
        self.conversation.insert(item)
        self.replies.create(self.spec(), Times(self.out.now))

    # -- small things -------------------------------------------------------------------------------------------------

    def spec(self, response: object = None) -> ResponseSpec:
        """What a response is to be, with the overrides of a ``response.create``. Raises :class:`ClientError`."""
        return self.config.response(response, self.model, voice_locked=self.replies.spoke)

    def to_dict(self) -> dict[str, object]:
        """The session as the protocol shows it."""
        return self.config.to_dict(self.id, self.model.name, self.expires_at)
