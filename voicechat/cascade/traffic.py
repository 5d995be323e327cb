"""Responses on their way through the stages: what the stages say moves them on, and takes them to their one end.

Everything is fire and forget, on the server's event loop. A response's slot is free again once every stage that held it
has said so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from voicechat.cascade.hearing import Hearing
from voicechat.cascade.leases import Leases
from voicechat.cascade.response import ResponseState
from voicechat.cascade.stage import StageLike
from voicechat.contract.calls import ToolCall
from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, Overloaded, StageFailed
from voicechat.contract.events import AudioDelta, FinishReason, TextDelta
from voicechat.contract.hearing import Transcription
from voicechat.contract.messages import (
    Abort,
    Attached,
    Called,
    Codes,
    Decode,
    Failed,
    Message,
    Piece,
    Released,
    Sound,
    Spoken,
    Text,
    Transcript,
    Written,
)
from voicechat.contract.pool import Pool
from voicechat.contract.requests import SpeechRequest
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.contract.stopwatch import Stopwatch
from voicechat.contract.tools import call_text

log = logging.getLogger(__name__)

MAX_UNREAD = 120 * PCM_RATE
"""Samples that a face may leave unread, before no more are made for it."""
NOTHING_TO_SPEAK = "There is nothing in the text that can be spoken."


class Traffic:
    """The responses in the making, by number. ``decodes`` bounds the chunks inside the VoiceBox at any time; a speech
    step sounds ``step_samples``.

    ``stages`` are filled in by the owner, by what they do (``thinker``, ``talker``, ``voicebox``), and so is
    ``hearing``: they are made with this object's methods as their callbacks.
    """

    stages: Mapping[str, StageLike]
    hearing: Hearing

    def __init__(self, pool: Pool, leases: Leases, *, decodes: int, step_samples: int) -> None:
        self.pool = pool
        self.leases = leases
        self.states: dict[int, ResponseState] = {}
        self._decodes = decodes
        self._step_samples = step_samples
        self._died: dict[str, float] = {}
        self._moved: dict[int, ResponseState] = {}
        self._pumping = False

    @property
    def speaking(self) -> int:
        """Responses with sound that have not ended."""
        return sum(state.chunks is not None and not state.ended for state in self.states.values())

    def watch_work(self, watch: Stopwatch) -> None:
        """Have the stopwatch look at what is done for each stage's messages."""
        for role in ("thinker", "talker", "voicebox"):
            watch.watch(self, f"_from_{role}", f"from_{role}")
        watch.watch(self, "_pump", "pump")

    # ---- what stages say

    def take(self, role: str, message: Message) -> None:
        """Pass a stage's message on. A programming error ends the one response that met it, loudly, not the stage.

        A stage of another role is one that no response goes through.
        """
        handler = getattr(self, f"_from_{role}", None)
        if handler is None:
            return
        try:
            handler(message)
        except Exception:
            log.exception("handling %s failed", type(message).__name__)
            if (state := self._state_of(message)) is not None:
                self.fail(state, CascadeError("The server had an error while processing the request."))

    def _from_ears(self, message: Message) -> bool:
        """Whether it was about a sound on its way to the ears."""
        match message:
            case Transcript():
                self.hearing.settle(message.id, message.heard)
                return True
            case Attached():
                self.hearing.settle(message.id, Transcription(""))
                return True
            case Failed():
                return self.hearing.settle(message.id, failure("ears", message))
        return False

    def _from_thinker(self, message: Message) -> None:
        if self._from_ears(message):
            return
        state = self._state_of(message)
        if state is None:
            return
        match message:
            case Piece() if not state.ended:
                state.marks.note("thinker_first_token")
                if text := "".join(message.pieces):
                    state.emit(TextDelta(text))
                if state.chunks is not None:
                    pieces = message.pieces
                    if state.spoken is not None:
                        pieces = tuple(_texts(state.spoken.push(piece)) for piece in pieces)
                    self.stages["talker"].send(Text(state.number, pieces, False, message.sent_ns, message.note))
            case Called() if not state.ended:
                state.marks.note("thinker_first_token")
                state.emit(TextDelta("\n".join(call_text(call.name, call.arguments) for call in message.calls)))
            case Written() if not state.ended:
                state.marks.note("thinker_done")
                state.prompt_tokens, state.cached_tokens = message.prompt_tokens, message.cached_tokens
                state.completion_tokens, state.text_done = message.completion_tokens, True
                if message.reason == "length":
                    state.finish = FinishReason.LENGTH
                if state.chunks is not None:
                    rest = _texts(state.spoken.finish()) if state.spoken is not None else ""
                    self.stages["talker"].send(Text(state.number, (rest,) if rest else (), True, time.monotonic_ns()))
                self._maybe_finish(state)
            case _:
                self._from_any(state, "thinker", message)

    def _from_talker(self, message: Message) -> None:
        state = self._state_of(message)
        if state is None:
            return
        match message:
            case Codes() if not state.ended and state.chunks is not None:
                state.marks.note("talker_first_code")
                state.chunks.push(message.steps)
                state.handoffs_us.extend(message.rows_ready_us)
                self.moved(state)
            case Spoken() if not state.ended and state.chunks is not None:
                state.marks.note("talker_done")
                state.chunks.close()
                state.speech_done = True
                if isinstance(state.request, SpeechRequest) and not state.chunks.steps:
                    self.fail(state, InvalidRequest(NOTHING_TO_SPEAK, param="text"))
                    return
                self.moved(state)
                self._maybe_finish(state)
            case _:
                self._from_any(state, "talker", message)

    def _from_voicebox(self, message: Message) -> None:
        state = self._state_of(message)
        if state is None or state.lease is None or not isinstance(message, Sound | Failed):
            return
        chunk, state.decoding = state.decoding, None
        if isinstance(message, Failed):
            state.sounding = False
            self.fail(state, failure(self.stages["voicebox"].name, message))
        else:
            self._take_sound(state, message, last=chunk is not None and chunk.last)
        self.settle(state)
        self.moved(state)

    def _take_sound(self, state: ResponseState, sound: Sound, *, last: bool) -> None:
        assert state.lease is not None
        state.state = sound.state
        if last:
            state.sounding = False
        if not state.ended:
            state.marks.note("voicebox_first_chunk")
            if sound.count:
                self._leave(state, self.pool.read_pcm(state.lease.slot, sound.start, sound.count))
            self._maybe_finish(state)

    def _from_any(self, state: ResponseState, role: str, message: Message) -> None:
        match message:
            case Failed():
                self.fail(state, failure(self.stages[role].name, message))
            case Released():
                state.inside.discard(role)
                state.acks[role] = message.ack
                done = state.text_done if role == "thinker" else state.speech_done
                if not done and not state.ended:  # its engine is gone, and the host is about to follow
                    self.fail(state, StageFailed(role, f"The {role} stage broke off. Please try again."))
                self.settle(state)

    def _state_of(self, message: Message) -> ResponseState | None:
        return self.states.get(getattr(message, "id", -1))

    # ---- from steps to sound

    def moved(self, state: ResponseState) -> None:
        """Something has changed by which a response may have a chunk for the VoiceBox, or room for one in it.

        It is looked into once for all that happens in this turn of the loop.
        """
        self._moved[state.number] = state
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Give the VoiceBox its next chunks, the one whose player runs dry first before the others."""
        self._pumping = False
        eligible = [state for state in self._moved.values() if self._has_chunk(state)]
        room = self._decodes - sum(state.decoding is not None for state in self.states.values()) if eligible else 0
        if len(eligible) > room:
            eligible.sort(key=self._runs_dry)
        # Those for which there is no room are looked at again when there is some.
        self._moved = {state.number: state for state in eligible[max(0, room) :]}
        for state in eligible[: max(0, room)]:
            self._decode(state)

    @staticmethod
    def _has_chunk(state: ResponseState) -> bool:
        return (
            state.chunks is not None
            and state.decoding is None
            and not state.ended
            and state.unread_samples < MAX_UNREAD
            and state.chunks.ready
        )

    def _decode(self, state: ResponseState) -> None:
        assert state.chunks is not None
        assert state.lease is not None
        chunk = state.chunks.pop()
        assert chunk is not None
        state.marks.note("talker_first_chunk")
        state.decoding, state.sounding = chunk, True
        self.stages["voicebox"].send(
            Decode(
                state.number,
                state.lease.slot,
                chunk.steps,
                chunk.left,
                chunk.emit,
                chunk.first_step * self._step_samples,
                state.voice,
                state.state,
                chunk.last,
                state.request.speed,
            )
        )

    @staticmethod
    def _runs_dry(state: ResponseState) -> tuple[float, int]:
        first = state.marks.get("first_audio")
        if first is None:
            return (float("-inf"), state.number)
        return (first + state.sent_samples / PCM_RATE - state.marks.since_start(), state.number)

    def _leave(self, state: ResponseState, pcm: Pcm) -> None:
        """Where sound leaves the cascade, marked: it came through :mod:`voicechat.stages.door`."""
        state.sent_samples += len(pcm)
        state.marks.note("first_audio")
        state.emit(AudioDelta(pcm))

    def _maybe_finish(self, state: ResponseState) -> None:
        if not state.text_done or state.ended:
            return
        if state.chunks is not None and not (state.chunks.done and state.decoding is None):
            return
        state.end(state.finished(state.finish, PCM_RATE))
        self.settle(state)

    # ---- ends

    def cancel(self, state: ResponseState) -> None:
        """End a response because its caller wants no more of it."""
        state.end(state.finished(FinishReason.CANCELLED, PCM_RATE))
        self._withdraw(state)

    def fail(self, state: ResponseState, error: CascadeError) -> None:
        """End a response with an error."""
        state.end(error)
        self._withdraw(state)

    def _withdraw(self, state: ResponseState) -> None:
        """Keep an ended response from entering, and take it out of every stage that still holds it."""
        if state.task is not None:
            state.task.cancel()
        for role in state.inside:
            self.stages[role].send(Abort(state.number))
        if state.sounding:
            state.sounding = False
            self.stages["voicebox"].send(Abort(state.number))
        self.settle(state)

    def settle(self, state: ResponseState) -> None:
        """Give the slot back once the response has ended and no stage holds it any more."""
        entering = state.task is not None and not state.task.done()
        if not state.ended or state.inside or state.decoding is not None or entering:
            return
        if self.states.pop(state.number, None) is None:
            return
        for number in state.attached:
            self.stages["thinker"].send(Abort(number))
        if state.lease is None:
            return
        lanes = {"thinker": self.pool.thinker_ack, "talker": self.pool.talker_ack}
        slot, acks, entered = state.lease.slot, state.acks, state.entered_at

        def quiet() -> bool:
            """True once no worker can touch the slot: it said so, or its stage died and no process of it runs."""
            for role, ack in acks.items():
                dead = self._died.get(role, 0.0) > entered and self.stages[role].buried
                if ack and int(lanes[role][slot]) != ack and not dead:
                    return False
            return True

        self.leases.release(state.lease, quiet)

    def stage_died(self, role: str, error: Callable[[], StageFailed]) -> None:
        """Fail what was inside a dead stage, each response with an error of its own."""
        self._died[role] = time.monotonic()
        self.hearing.fail_all(self.stages[role], error)
        for state in list(self.states.values()):
            if role == "voicebox":
                lost = state.decoding is not None or (state.chunks is not None and not state.chunks.done)
                state.decoding, state.sounding = None, False
            else:
                lost = role in state.inside
                if lost:
                    state.inside.discard(role)
                    state.acks[role] = -1
            if lost:
                self.fail(state, error())
            self.settle(state)


def _texts(found: Sequence[str | ToolCall]) -> str:
    """The part of a piece that is no call."""
    return "".join(part for part in found if isinstance(part, str))


def failure(stage: str, message: Failed) -> CascadeError:
    """What a stage's word of failure is to the caller."""
    if message.invalid:
        return InvalidRequest(message.message, param=message.param, code=message.code)
    if message.overloaded:
        return Overloaded(message.message, retry_after=message.retry_after)
    if message.unreachable:
        return NotReady(message.message)
    return StageFailed(stage, message.message)
