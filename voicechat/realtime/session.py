"""One realtime session as a pure state machine: what a transport, the VAD, the cascade and a clock tell it comes in;
server events and effects come out.

Every method returns what is to be sent and done, in order. Time is what :meth:`Session.tick` says. Nothing here waits,
and nothing that comes late does harm: output of a response that was stopped, or text for an item that is gone, is
dropped.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import CascadeError
from voicechat.contract.events import Event
from voicechat.contract.sound import EARS_RATE, FRAME_MS, EarsPcm
from voicechat.realtime import segmenter
from voicechat.realtime.client_events import ClientEvent
from voicechat.realtime.commands import Commands
from voicechat.realtime.conversation import CHARS_PER_TOKEN, SILENT, Conversation, Senses
from voicechat.realtime.errors import SERVER, ClientError, cascade_error
from voicechat.realtime.input_buffer import InputBuffer, seconds_of
from voicechat.realtime.items import MAX_PARTS, Item, Part
from voicechat.realtime.lexicon import Lexicon, lexicon
from voicechat.realtime.open_turn import TRANSCRIPTION, OpenTurn
from voicechat.realtime.outbox import Clip, Close, Outbox, Output
from voicechat.realtime.playback import Playback
from voicechat.realtime.policy import TurnPolicy
from voicechat.realtime.recognition import Recognition, Waiting
from voicechat.realtime.replies import Replies
from voicechat.realtime.response import Times
from voicechat.realtime.segmenter import (
    EndReason,
    SpeechDismissed,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    SpeechSuspected,
    TurnDiscarded,
    TurnEnded,
)
from voicechat.realtime.settings import ResponseSpec, SessionConfig
from voicechat.realtime.turn_state import AGENT, Cue, TurnMachine, TurnState

_TAKEN_BACK = 64
"""Items of responses that were taken back, of which it is known that the client may still truncate them."""

CLOSE_EXPIRED = 1001
"""WebSocket close code of a session that has expired: going away."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds and defaults of one session. ``policy``: how turns are taken. ``eager``: begin the response at a pause
    that may be the end of the turn.

    ``server_plays``: the server plays the sound (WebRTC) and knows to the sample what was heard. ``judged``: there is a
    model that judges by the sound whether a turn is over.
    """

    policy: TurnPolicy = field(default_factory=TurnPolicy)
    max_messages: int = 64
    max_items: int = 512
    eager: bool = True
    reply_reserve_tokens: int = 512
    max_seconds: float = 3600.0
    warn_seconds: float = 60.0
    server_plays: bool = False
    judged: bool = False


@dataclass(slots=True)
class _Tentative:
    """A turn that may be taken back: its item, the times of its response, and the silence since its last voice."""

    item: Item
    times: Times
    silence_ms: int


class Session:
    """See the module. ``ids(prefix)`` makes unique identifiers; ``expires_at`` is a Unix time, only shown."""

    def __init__(
        self, session_id: str, model: ModelInfo, config: SessionConfig, limits: SessionLimits,
        ids: Callable[[str], str], *, expires_at: int = 0,
    ) -> None:  # fmt: skip
        self.id = session_id
        self.model = model
        self.config = dataclasses.replace(config, begun=True)
        self.limits = limits
        self.expires_at = expires_at
        self.out = Outbox(ids)
        budget = max(256, model.context_tokens - limits.reply_reserve_tokens) * CHARS_PER_TOKEN
        self.conversation = Conversation(
            self.out,
            max_chars=budget,
            max_messages=limits.max_messages,
            max_items=limits.max_items,
            senses=_senses(model),
        )
        self.playback = Playback(self.out, self.conversation, server=limits.server_plays)
        self.turn = TurnMachine()
        """Whose turn it is."""
        self.asr = Recognition(self.out)
        self.replies = Replies(self.out, self.conversation, self.playback, lambda: self.asr.pending)
        self.input = InputBuffer(limits.policy, config.detection)
        self._open_turn = OpenTurn(self)
        self._commands = Commands(self)
        self.item_id = ""
        """Of the turn that is being spoken."""
        self.owed: Times | None = None
        """The user said something that has no reply yet."""
        self._tentative: _Tentative | None = None
        self._taken_back: deque[str] = deque(maxlen=_TAKEN_BACK)
        self._opened = 0.0
        self._warned = False
        self._quiet_since: float | None = None
        self._asked_again = True  # the idle timeout waits until somebody has spoken

    # -- the transport ------------------------------------------------------------------------------------------------

    def open(self) -> list[Output]:
        """The client is there."""
        self._opened = self.out.now
        self.turn.feed(Cue.CONNECT)
        self.out.send("session.created", session=self.to_dict())
        if self.config.kind == "realtime":
            conversation = {"id": self.replies.conversation_id, "object": "realtime.conversation"}
            self.out.send("conversation.created", conversation=conversation)
        return self._out()

    def tick(self, now: float) -> list[Output]:
        """Time has come to ``now`` seconds; never goes back."""
        self.out.now = max(now, self.out.now)
        if not self.turn.closed:
            self._follow()
            self._check_expiry()
            self._check_idle()
        return self._out()

    def on_event(self, event: ClientEvent) -> list[Output]:
        """The client sent an event. Sound is not taken from here, but frame by frame by :meth:`on_frame`."""
        if self.turn.closed:
            return []
        try:
            if event.error is not None:
                raise event.error
            if event.body is not None:
                self._settle()
                self._commands.obey(event.body)
        except ClientError as error:
            self.out.error(error.message, code=error.code, param=error.param, client_event_id=event.id)
        return self._out()

    def on_frame(self, frame: EarsPcm, voiced: bool) -> list[Output]:
        """20 ms from the microphone (float32, shape ``[320]``), and whether somebody speaks in it.

        What comes before :meth:`open` is not heard: the client could not be told of it.
        """
        if not self.turn.closed and self.turn.state is not TurnState.CONNECTING:
            self._silence(FRAME_MS)
            tentative = self.turn.state is TurnState.TENTATIVE
            self.perform(self.input.push(frame, voiced, strict=self.playback.sounding and not tentative))
            if self.turn.open:
                self._open_turn.frame()
        return self._out()

    def on_starved(self, frames: int) -> list[Output]:
        """No sound came from the microphone for this many frames."""
        if not self.turn.closed:
            self._silence(frames * FRAME_MS)
            self.perform(self.input.starve(frames))
        return self._out()

    def on_played(self, played: int, *, started: bool = False, drained: bool = False) -> list[Output]:
        """A frame has left the server's playout clock: ``played`` samples of the current sound in all."""
        if not self.turn.closed:
            reply = self.replies.current
            if started and reply is not None:
                reply.times.first_sound = self.out.now
            if self.playback.on_played(played, started=started, drained=drained):
                self.reply_if_owed()
        return self._out()

    def going_down(self) -> list[Output]:
        """The server will soon end this session, as it ends all."""
        if not self.turn.closed:
            message = "The server is going down: this session ends with the reply that is being spoken. Connect again."
            self.out.error(message, kind=SERVER, code="session_expired")
        return self._out()

    def close(self) -> list[Output]:
        """The client is gone: stop everything. Idempotent."""
        if self.turn.closed:
            return []
        self._settle()
        self.replies.interrupt("client_cancelled")
        self.replies.drop_speculation()
        self._open_turn.end()
        self.asr.close()
        self.turn.feed(Cue.CLOSE)
        return self._out()

    # -- the ASR and the cascade --------------------------------------------------------------------------------------

    def on_text(self, job: int, text: str) -> list[Output]:
        """The text of a sound that was to be transcribed."""
        if not self.turn.closed:
            text = text.strip()
            waiting = self.asr.on_text(job, text)
            if waiting is not None:
                self._understood(waiting, text)
            else:
                self._open_turn.heard(job, text)
        return self._out()

    def on_text_failed(self, job: int, error: CascadeError | TimeoutError) -> list[Output]:
        """A sound could not be transcribed."""
        if not self.turn.closed:
            self._open_turn.failed(job)
        if not self.turn.closed and (waiting := self.asr.on_failed(job)) is not None:
            if self.config.transcription is not None:
                inner = {**cascade_error(error), "param": None}
                self.out.send(
                    f"{TRANSCRIPTION}.failed", item_id=waiting.item.id, content_index=waiting.part, error=inner
                )
            self.proceed()
        return self._out()

    def on_judged(self, job: int, probability: float | None) -> list[Output]:
        """How likely the turn is over by its sound; None if it could not be judged."""
        if not self.turn.closed:
            self._open_turn.judged(job, probability)
        return self._out()

    def on_cascade(self, generation: int, event: Event) -> list[Output]:
        """Something came of a response."""
        if not self.turn.closed:
            self.replies.on_event(generation, event)
            self._open_turn.drafted()
            self.reply_if_owed()
        return self._out()

    def on_cascade_failed(self, generation: int, error: CascadeError) -> list[Output]:
        """A response can't go on."""
        if not self.turn.closed:
            self.replies.on_failed(generation, error)
            self._open_turn.drafted()
            self.reply_if_owed()
        return self._out()

    # -- turns --------------------------------------------------------------------------------------------------------

    def perform(self, effects: list[segmenter.Effect]) -> None:
        """Follow what becomes of the user's sound."""
        for effect in effects:
            match effect:
                case SpeechStarted(start_ms) if self._retaken():
                    self._retake(start_ms)
                case SpeechStarted(start_ms):
                    self._settle()
                    self._open(start_ms)
                case SpeechSuspected():
                    self._settle()
                    self.turn.feed(Cue.SUSPECT)
                    if self._interruptible:
                        self.playback.hold()
                case SpeechDismissed():
                    self.turn.feed(Cue.DISMISS)
                    self.playback.release()
                case SpeechPaused(audio):
                    self.turn.feed(Cue.PAUSE)
                    self._open_turn.pause(audio)
                case SpeechResumed():
                    self.resumed()
                case TurnDiscarded(end_ms):
                    self._discard_turn(end_ms)
                case TurnEnded() if self.turn.state is TurnState.ACKNOWLEDGED:
                    self._discard_turn(effect.end_ms)
                case TurnEnded():
                    if self.turn.undecided:
                        self.yield_to_user()
                    self._end_turn(effect)

    def resumed(self) -> None:
        """The user speaks on after a pause."""
        acknowledged = self.turn.state is TurnState.ACKNOWLEDGED
        if self.turn.may(Cue.RESUME):
            self.turn.feed(Cue.RESUME)
        self.drop_speculation()
        if acknowledged:
            self.yield_to_user()

    def proceed(self) -> None:
        """Something that a response may have waited for has come."""
        self.replies.proceed()
        self.reply_if_owed()

    def reply_if_owed(self) -> None:
        """Reply to what the user said, unless the user is (or may be) about to say more, or a reply is live."""
        if self.owed is None or not self.replies.idle or self.asr.pending or self.turn.open:
            return
        times, self.owed = self.owed, None
        self.replies.create(self.spec(), times)

    def settle(self) -> None:
        """A response was asked for: no other is owed."""
        self.owed = None

    def drop_speculation(self) -> None:
        """What was begun ahead is void."""
        self._open_turn.resume()
        self.asr.drop_hypothesis()
        self.replies.drop_speculation()

    @property
    def weighing(self) -> bool:
        """True while a reply that can be gone on with waits to learn whether what is being said is a barge-in."""
        return self.turn.undecided and (self.playback.held or self.replies.resumable)

    @property
    def lexicon(self) -> Lexicon:
        """The words of the user's language."""
        return lexicon(self.config.language or self.limits.policy.language)

    @property
    def _interruptible(self) -> bool:
        detection = self.config.detection
        return detection is not None and detection.interrupt_response

    def _open(self, start_ms: int) -> None:
        """A turn opens. Where the client plays, it stops now; what is left of the reply is kept until it is known
        whether that was a barge-in."""
        self.item_id = self.out.new_id("item")
        self.drop_speculation()
        self._asked_again = False
        self.out.send("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self.item_id)
        self._open_turn.begin()
        contested = self.playback.held
        if not contested and self._interruptible:
            contested = not self.limits.server_plays and self.replies.suspend()
            if not contested:
                self.yield_to_user()
        self.turn.feed(Cue.CONTEST if contested else Cue.OPEN)

    def yield_to_user(self) -> None:
        """Stop the live reply; if nothing of it was heard yet, it is still owed."""
        if self.turn.undecided:
            self.turn.feed(Cue.YIELD)
        self.replies.give_up()
        reply = self.replies.current
        if not self._interruptible or reply is None:
            self.playback.release()
            return
        heard = self.playback.sounding or (not self.limits.server_plays and reply.spoken > 0)
        if not heard and reply.spec.in_conversation and reply.inputs is None:
            self.owed = self.owed or reply.times
        self.replies.interrupt("turn_detected")

    def _discard_turn(self, end_ms: int) -> None:
        """It was no turn: a reply that waited for it goes on."""
        self.turn.feed(Cue.DISCARD)
        self.drop_speculation()
        self._open_turn.end()
        self.playback.release()
        self.out.send("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=self.item_id)
        self.out.send("input_audio_buffer.cleared")
        self.replies.resume()
        self.reply_if_owed()

    def _end_turn(self, turn: TurnEnded) -> None:
        leans = self._leans(turn)
        self.turn.feed(Cue.LEAN if leans else Cue.END)
        item_id, self.item_id = self.item_id or self.out.new_id("item"), ""
        told = self._open_turn.end()
        times = Times(self.out.now, endpointing_ms=turn.silence_ms)
        detected = self.config.detection
        if detected is not None:
            self.out.send("input_audio_buffer.speech_stopped", audio_end_ms=turn.end_ms, item_id=item_id)
        sound = Clip(turn.audio, EARS_RATE)
        item = Item(item_id, parts=[Part("input_audio", None, [sound])])
        self.out.send("input_audio_buffer.committed", item_id=item_id, previous_item_id=self.conversation.last_id)
        self.conversation.insert(item)
        replies = detected is not None and detected.create_response
        if leans:
            self._tentative = _Tentative(item, times, turn.silence_ms)
        waiting = Waiting(item, 0, seconds_of(turn.audio), times if replies else None, told)
        if (text := self.asr.hear(waiting, sound)) is not None:
            self._understood(waiting, text)

    # -- taking an end back -------------------------------------------------------------------------------------------

    def was_taken_back(self, item_id: str) -> bool:
        """True if the item was of a response that was taken back."""
        return item_id in self._taken_back

    def _leans(self, turn: TurnEnded) -> bool:
        """True if the end of the turn is a likely one, which is taken back if the user goes on at once."""
        detection, limit = self.config.detection, self.limits.policy.endpointing.retake_ms
        if detection is None or detection.kind != "semantic_vad" or turn.reason is not EndReason.SILENCE:
            return False
        wanted = detection.create_response and detection.interrupt_response
        return wanted and turn.silence_ms < limit and self.turn.may(Cue.LEAN) and self.replies.idle

    def _silence(self, milliseconds: int) -> None:
        """So much more silence after the turn that may be taken back."""
        tentative, policy = self._tentative, self.limits.policy.endpointing
        if tentative is None:
            return
        tentative.silence_ms += milliseconds
        if tentative.silence_ms > policy.retake_ms or self.playback.heard_ms > policy.retake_heard_ms:
            self._settle()

    def _settle(self) -> None:
        """The turn can't be taken back any more."""
        if self._tentative is not None:
            self._tentative = None
            self.input.forget()
            self.turn.feed(Cue.SETTLE)

    def _retaken(self) -> bool:
        """True if the speech that starts goes on with the turn that has just ended: nothing else has followed it."""
        tentative = self._tentative
        if tentative is None:
            return False
        reply = self.replies.answering(tentative.times)
        if reply is not None and reply.called:
            return False
        last = tentative.item if reply is None or reply.message is None else reply.message
        return self.conversation.get(tentative.item.id) is tentative.item and self.conversation.last_id == last.id

    def _retake(self, start_ms: int) -> None:
        """The user goes on: the turn is open again, and no response to it was ever begun."""
        tentative, self._tentative = self._tentative, None
        assert tentative is not None, "only such a turn is taken back"
        self.item_id = self.out.new_id("item")
        self.turn.feed(Cue.RETAKE)
        self.input.reopen()
        self.drop_speculation()
        self.out.send("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self.item_id)
        if self.owed is tentative.times:
            self.owed = None
        if (message := self.replies.take_back(tentative.times)) is not None:
            self._taken_back.append(message.id)
        self.asr.drop_item(self.conversation.delete(tentative.item.id))
        self._open_turn.begin()

    def _understood(self, waiting: Waiting, text: str) -> None:
        """The text of an item's sound has come."""
        item, index = waiting.item, waiting.part
        item.parts[index].text = text
        if self.config.transcription is not None and self.conversation.get(item.id) is item:
            place = {"item_id": item.id, "content_index": index}
            if piece := waiting.told.finish(text):
                self.out.send(f"{TRANSCRIPTION}.delta", **place, delta=piece)
            usage = {"type": "duration", "seconds": waiting.seconds}
            self.out.send(f"{TRANSCRIPTION}.completed", **place, transcript=text, usage=usage)
        if waiting.times is not None and text:
            waiting.times.transcript = self.out.now
            self.owed = waiting.times
        self.proceed()

    # -- the clock ----------------------------------------------------------------------------------------------------

    def _check_expiry(self) -> None:
        if self.turn.state is TurnState.CONNECTING:
            return
        left = self._opened + self.limits.max_seconds - self.out.now
        if left <= 0:
            self.out.error("The session has expired.", code="session_expired")
            self.replies.interrupt("client_cancelled")
            self.drop_speculation()
            self.asr.close()
            self.turn.feed(Cue.CLOSE)
            self.out.add(Close(CLOSE_EXPIRED, "session_expired"))
        elif left <= self.limits.warn_seconds and not self._warned:
            # The protocol has no event for a warning, and some clients take any error for the end. The session with its
            # ``expires_at`` tells those that care, and harms none.
            self._warned = True
            self.out.send("session.updated", session=self.to_dict())

    def _check_idle(self) -> None:
        detection = self.config.detection
        limit = None if detection is None else detection.idle_timeout_ms
        if limit is None or self.turn.state is not TurnState.IDLE or self._asked_again:
            self._quiet_since = None
            return
        if self._quiet_since is None:
            self._quiet_since = self.out.now
        if (self.out.now - self._quiet_since) * 1000 < limit:
            return
        self._asked_again = True
        end = self.input.now_ms
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

    def _out(self) -> list[Output]:
        """What is to be done."""
        self._follow()
        return self.out.take()

    def _follow(self) -> None:
        """Let the state follow what is owed, made and heard."""
        if self.turn.undecided and not (self.playback.held or self.replies.suspended):
            self.turn.feed(Cue.YIELD)
        if self.turn.state in AGENT:
            self.turn.feed(self._agent())

    def _agent(self) -> Cue:
        if self.playback.sounding:
            return Cue.HEARD
        due = self.owed is not None or self.asr.pending or not self.replies.idle
        return Cue.DUE if due else Cue.OVER

    # -- small things -------------------------------------------------------------------------------------------------

    def spec(self, response: object = None) -> ResponseSpec:
        """What a response is to be, with the overrides of a ``response.create``. Raises :class:`ClientError`."""
        return self.config.response(response, self.model, voice_locked=self.replies.spoke)

    def to_dict(self) -> dict[str, object]:
        """The session as the protocol shows it."""
        return self.config.to_dict(self.id, self.model.name, self.expires_at)


def _senses(model: ModelInfo) -> Senses:
    """What the model takes beside text, of one request."""
    images = MAX_PARTS if model.most_images is None else min(MAX_PARTS, model.most_images)
    sounds = MAX_PARTS if model.most_sounds is None else min(MAX_PARTS, model.most_sounds)
    return Senses(images if model.sees else 0, sounds if model.hears else 0)
