"""Who answers, and when: at most one live response, begun ahead where that can be, stale output dropped. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from voicechat.contract.errors import CascadeError
from voicechat.contract.events import AudioDelta, Event, Finished, FinishReason, TextDelta, Usage
from voicechat.contract.requests import Message, ResponseRequest, Sampling
from voicechat.realtime.conversation import Conversation
from voicechat.realtime.errors import INVALID, cascade_error
from voicechat.realtime.items import Item
from voicechat.realtime.outbox import CancelResponse, Outbox, StartResponse
from voicechat.realtime.playback import Playback
from voicechat.realtime.remainder import Remainder
from voicechat.realtime.response import Reply, Times
from voicechat.realtime.settings import ResponseSpec
from voicechat.realtime.tools import asked_tools, told_length

PATIENCE_S = 30.0
"""How long a turn waits for a stage that is being started again."""


@dataclass(slots=True)
class _Speculation:
    """A response that was begun ahead; nobody was told of it, and what came of it is held back."""

    generation: int
    request: ResponseRequest
    events: list[Event | CascadeError] = field(default_factory=list)


class Replies:
    """``waiting()`` is true while an item of the conversation still lacks its text; a response then begins later."""

    def __init__(
        self, out: Outbox, conversation: Conversation, playback: Playback, waiting: Callable[[], bool]
    ) -> None:
        self._out = out
        self._conversation = conversation
        self._playback = playback
        self._waiting = waiting
        self._conversation_id = out.new_id("conv")
        self._generation = 0
        self._reply: Reply | None = None
        self._last: Reply | None = None
        self._speculation: _Speculation | None = None
        self._remainder: Remainder | None = None
        self._spoke = False

    @property
    def conversation_id(self) -> str:
        """Identifier of the conversation."""
        return self._conversation_id

    @property
    def live(self) -> Reply | None:
        """The response that is being made."""
        return self._reply

    @property
    def current(self) -> Reply | None:
        """The response that is being made or, where the server plays, that is being played."""
        return self._reply or (self._last if self._playback.busy else None)

    @property
    def idle(self) -> bool:
        """True if no response is being made, none may be gone on with, and none is played by the server."""
        return self._reply is None and self._remainder is None and not self._playback.busy

    @property
    def suspended(self) -> bool:
        """True while a reply that was stopped may be gone on with."""
        return self._remainder is not None

    @property
    def resumable(self) -> bool:
        """True if so, and the client has told where it stopped."""
        return self._remainder is not None and self._remainder.worth_hearing()

    @property
    def unready(self) -> bool:
        """True while a response that was begun ahead has brought nothing yet that could be heard (or read)."""
        speculation = self._speculation
        if speculation is None:
            return False
        awaited = AudioDelta if speculation.request.audio else TextDelta
        return not any(isinstance(event, awaited | Finished | CascadeError) for event in speculation.events)

    @property
    def spoke(self) -> bool:
        """True once any sound was made: the voice can't be changed any more."""
        return self._spoke

    def create(self, spec: ResponseSpec, times: Times, inputs: list[Item] | None = None) -> None:
        """Make a new response; there must be no live one. Sound that is still played is stopped for it."""
        if self._reply is not None:
            raise RuntimeError("there is a live response already")
        self.give_up()
        if spec.audio and self._playback.busy:
            self.interrupt("client_cancelled")
        reply = Reply(self._out, self._conversation, self._playback, spec, times, self._conversation_id)
        reply.inputs = inputs
        self._reply = self._last = reply
        self.proceed()

    def proceed(self) -> None:
        """Ask the cascade for the live response, if that has not been done and nothing it needs is missing."""
        reply = self._reply
        if reply is None or reply.generation is not None or self._waiting():
            return
        request = self._request(reply.spec, reply.inputs)
        speculation, self._speculation = self._speculation, None
        if speculation is not None and speculation.request == request:
            reply.generation = speculation.generation
            self._replay(speculation.generation, speculation.events)
            return
        if speculation is not None:
            self._out.add(CancelResponse(speculation.generation))
        if all(message.role == "system" for message in request.messages) and not reply.spec.instructions.strip():
            error = {"type": INVALID, "code": "conversation_empty", "message": "There is nothing to reply to."}
            self._finish(reply, "failed", error=error)
            return
        reply.generation = self._start(request)

    def speculate(self, spec: ResponseSpec, said: str) -> None:
        """Begin the response that will follow if ``said`` is the next turn, unless another is live."""
        if self.idle and self._speculation is None and not self._waiting():
            request = self._request(spec, None, Message.text("user", said))
            self._speculation = _Speculation(self._start(request), request)

    def drop_speculation(self) -> None:
        """That turn is not over."""
        speculation, self._speculation = self._speculation, None
        if speculation is not None:
            self._out.add(CancelResponse(speculation.generation))

    def suspend(self) -> bool:
        """Stop the reply that the client is being sent, or still plays, as one that may be gone on with: the cascade
        makes more of it. False, and nothing has happened, if there is none.

        A client that has played all that it was sent has nothing to stop, and will not tell where it did.
        """
        reply = self._reply or (self._last if self._playback.sounding else None)
        remainder = None if reply is None else Remainder.of(reply)
        if remainder is None:
            return False
        self.give_up()
        self._remainder = remainder
        if self._reply is not None:
            if not self._playback.sounding:
                remainder.cut = remainder.item.parts[0].samples
            self._playback.clear()
            self._finish(self._reply, "cancelled", "turn_detected")
            self._playback.truncate()
        return True

    def stopped_at(self, item: Item) -> None:
        """The client has truncated ``item``."""
        remainder = self._remainder
        if remainder is not None and remainder.item is item:
            remainder.cut = item.parts[0].samples

    def give_up(self) -> None:
        """What was suspended is not wanted any more."""
        remainder, self._remainder = self._remainder, None
        if remainder is not None and remainder.generation is not None and remainder.running:
            self._out.add(CancelResponse(remainder.generation))

    def resume(self) -> None:
        """It was nothing: go on with what was suspended, if the client has stopped to play it."""
        remainder = self._remainder
        if remainder is None or self._reply is not None or not remainder.worth_hearing():
            self.give_up()
            return
        if self._conversation.get(remainder.item.id) is not remainder.item:
            self.give_up()
            return
        self._remainder = None
        earlier = remainder.reply
        times = Times(self._out.now)
        reply = Reply(
            self._out, self._conversation, self._playback, earlier.spec, times, self._conversation_id, earlier
        )
        reply.generation, reply.inputs = remainder.generation, earlier.inputs
        self._reply = self._last = reply
        reply.go_on(remainder.words(), remainder.sound())
        if remainder.generation is None:
            self._finish(reply, remainder.status, remainder.reason, usage=Usage())  # what it took was told before
        else:
            self._replay(remainder.generation, remainder.events)

    def on_event(self, generation: int, event: Event) -> None:
        """Something came from the cascade; nothing happens if it is stale."""
        if self._kept(generation, event):
            return
        reply = self._reply
        if reply is None or reply.generation != generation:
            return
        match event:
            case TextDelta(text):
                reply.text(text)
            case AudioDelta(pcm):
                reply.audio(pcm)
                self._spoke = self._spoke or reply.spoken > 0
            case Finished():
                self._on_finished(reply, event)
                return
        if reply.satisfied():
            self._out.add(CancelResponse(generation))
            self._finish(reply, "completed")

    def on_failed(self, generation: int, error: CascadeError) -> None:
        """The cascade could not go on."""
        if self._kept(generation, error):
            return
        reply = self._reply
        if reply is not None and reply.generation == generation:
            self._finish(reply, "failed", error=cascade_error(error))

    def cancel(self, reason: str) -> bool:
        """Make no more of the live response; what was made may still be played. False if there is none."""
        reply = self._reply
        if reply is None:
            return False
        if reply.generation is not None:
            self._out.add(CancelResponse(reply.generation))
        self._finish(reply, "cancelled", reason=reason)
        return True

    def interrupt(self, reason: str) -> None:
        """Stop the live response and all sound at once; where the server plays, keep what was heard."""
        self.give_up()
        self._playback.clear()
        self.cancel(reason)
        self._playback.truncate()

    def take_back(self, times: Times) -> Item | None:
        """Stop the response to the turn of ``times``, if there is one, and forget that it was ever begun: what it said
        is deleted from the conversation, and returned."""
        reply = self.answering(times)
        if reply is None:
            return None
        self._playback.clear()
        self.cancel("turn_detected")
        message = reply.message
        if message is not None and self._conversation.get(message.id) is message:
            self._conversation.delete(message.id)
        self._playback.truncate()
        return message

    def answering(self, times: Times) -> Reply | None:
        """The response that answers the turn of ``times``, while it is being made or may be heard."""
        reply = self._reply or self._last
        return reply if reply is not None and reply.times is times else None

    def _kept(self, generation: int, event: Event | CascadeError) -> bool:
        """True if ``event`` is of a response that nobody hears yet, and was put away."""
        if self._speculation is not None and self._speculation.generation == generation:
            self._speculation.events.append(event)
            return True
        if self._remainder is not None and self._remainder.generation == generation:
            if not self._remainder.take(event):
                self.give_up()
            return True
        return False

    def _replay(self, generation: int, events: list[Event | CascadeError]) -> None:
        for event in events:
            if isinstance(event, CascadeError):
                self.on_failed(generation, event)
            else:
                self.on_event(generation, event)

    def _on_finished(self, reply: Reply, event: Finished) -> None:
        match event.reason:
            case FinishReason.LENGTH:
                self._finish(reply, "incomplete", "max_output_tokens", usage=event.usage, stages=event.times)
            case FinishReason.CANCELLED:
                self._finish(reply, "cancelled", usage=event.usage, stages=event.times)
            case _:
                self._finish(reply, "completed", usage=event.usage, stages=event.times)

    def _finish(self, reply: Reply, status: str, reason: str | None = None, **details: object) -> None:
        self._reply = None
        reply.close(status, reason=reason, **details)  # type: ignore[arg-type]

    def _start(self, request: ResponseRequest) -> int:
        self._generation += 1
        self._out.add(StartResponse(self._generation, request))
        return self._generation

    def _request(self, spec: ResponseSpec, inputs: list[Item] | None, *more: Message) -> ResponseRequest:
        instructions, reserved = spec.instructions.strip(), told_length(spec.tools, spec.tool_choice)
        if inputs is None:
            messages = self._conversation.messages(instructions, reserved)
        else:
            messages = self._conversation.build(inputs, instructions, reserved)
        return ResponseRequest(
            messages=(*messages, *more),
            audio=spec.audio,
            voice=spec.voice,
            latency_first=spec.latency_first,
            sampling=Sampling(max_tokens=spec.max_output_tokens),
            speed=spec.speed,
            patience=PATIENCE_S,
            **asked_tools(spec.tools, spec.tool_choice),
        )
