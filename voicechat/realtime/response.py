"""One response: its output items and content parts, each opened and closed once by the events that tell of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from voicechat.contract.calls import CallParser, ToolCall
from voicechat.contract.events import StageTimes, Usage
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.realtime.conversation import Conversation, shorten
from voicechat.realtime.items import Item, Part
from voicechat.realtime.outbox import BeginAudio, Clip, Outbox, Place
from voicechat.realtime.playback import Playback
from voicechat.realtime.settings import ResponseSpec, format_object

Status = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
"""Of a response."""

SAMPLES_PER_CHAR = PCM_RATE // 16
"""How much sound a character of text makes at speed 1, about; used only where the true length is not known."""


@dataclass(slots=True)
class Times:
    """When things happened, in seconds of the session's clock; ``endpointing_ms``: the silence that was waited for."""

    ended: float
    endpointing_ms: int | None = None
    transcript: float | None = None
    first_text: float | None = None
    first_audio: float | None = None
    first_sound: float | None = None

    def metadata(self, stages: StageTimes | None) -> dict[str, str]:
        """Milliseconds as strings, as a response's ``metadata`` wants them; counted from the end of the turn."""
        values: dict[str, float | None] = {
            "endpointing_ms": self.endpointing_ms,
            "ears_ms": self._since(self.transcript),
            "first_text_ms": self._since(self.first_text),
            "first_audio_ms": self._since(self.first_audio),
            "first_sound_ms": self._since(self.first_sound),
        }
        if stages is not None:
            for name in ("thinker_first_token", "talker_first_code", "voicebox_first_chunk"):
                seconds: float | None = getattr(stages, name)
                values[f"{name}_ms"] = None if seconds is None else seconds * 1000
        return {name: f"{value:.0f}" for name, value in values.items() if value is not None}

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else (moment - self.ended) * 1000


class Reply:
    """A response from ``response.created`` to ``response.done``; both are sent exactly once. ``after`` is the reply
    that it goes on with, if it does: see :meth:`go_on`."""

    def __init__(
        self, out: Outbox, conversation: Conversation, playback: Playback, spec: ResponseSpec, times: Times,
        conversation_id: str, after: Reply | None = None,
    ) -> None:  # fmt: skip
        self.id = out.new_id("resp")
        self.spec = spec
        self.times = times
        self.generation: int | None = None
        """Of the cascade's response, once it has been asked."""
        self.inputs: list[Item] | None = None
        """What is to be answered in place of the conversation."""
        self._out = out
        self._conversation = conversation
        self._playback = playback
        self._conversation_id = conversation_id if spec.in_conversation else None
        self._items: list[Item] = []
        self._message: Item | None = None
        self._after = after
        if after is None:
            self._parser = CallParser([tool.name for tool in spec.tools] if spec.tool_choice != "none" else [])
        else:
            self._parser = after._parser
        self._called = False
        self.status: Status = "in_progress"
        self.reason: str | None = None
        """Why it ended, once it has."""
        out.send("response.created", response=self._object("in_progress", None, None, {}))
        out.send("rate_limits.updated", rate_limits=[])  # neither requests nor tokens are limited here

    @property
    def live(self) -> bool:
        """True until it is closed."""
        return self.status == "in_progress"

    @property
    def message(self) -> Item | None:
        """What it says, once it says something."""
        return self._message

    @property
    def called(self) -> bool:
        """True once it has called a function."""
        return self._called

    @property
    def spoken(self) -> int:
        """Samples that were made of its sound."""
        return 0 if self._message is None else self._message.parts[0].samples

    def go_on(self, text: str, sounds: Iterable[Pcm]) -> None:
        """Begin with what is left of the earlier reply."""
        self._open()
        if text:
            self._take(text)
        for pcm in sounds:
            self.audio(pcm)

    def text(self, delta: str) -> None:
        """The next piece of text."""
        self.times.first_text = self.times.first_text or self._out.now
        for piece in self._parser.push(delta):
            self._take(piece)

    def audio(self, pcm: Pcm) -> None:
        """The next piece of sound. What speaks a function call aloud is dropped."""
        if not self.spec.audio or not len(pcm):
            return
        if self._message is None:
            if self._called or self._parser.holding:
                return
            self._open()
        assert self._message is not None
        self.times.first_audio = self.times.first_audio or self._out.now
        part = self._message.parts[0]
        part.samples += len(pcm)
        part.span = part.samples
        part.sounds.append(Clip(pcm, PCM_RATE))
        if self._conversation.get(self._message.id) is self._message:
            self._conversation.grew(pcm.nbytes)
        self._playback.push(pcm)

    def satisfied(self) -> bool:
        """True once a function was called and what was said before it has been spoken, by estimate: nothing else of
        use can follow."""
        if not self._called:
            return False
        if self._message is None or not self.spec.audio:
            return True
        part = self._message.parts[0]
        return part.samples >= self._estimate(part.text or "")

    def close(
        self, status: Status, *, reason: str | None = None, error: dict[str, str | None] | None = None,
        usage: Usage | None = None, stages: StageTimes | None = None,
    ) -> None:  # fmt: skip
        """Close everything that is open; ``response.done`` comes last."""
        if not self.live:
            raise RuntimeError("the response is closed already")
        self.status, self.reason = status, reason
        if status in ("completed", "incomplete"):
            for piece in self._parser.finish():
                self._take(piece)
        if self._message is not None:
            self._close_message(self._message, "completed" if status == "completed" else "incomplete", status)
        details: dict[str, Any] = {"type": status}
        if reason is not None:
            details["reason"] = reason
        if error is not None:
            details["error"] = error
        metadata = {**self.times.metadata(stages), **self.spec.metadata}
        self._out.send("response.done", response=self._object(status, details, usage, metadata))

    def _estimate(self, text: str) -> int:
        """Samples that ``text`` takes to say, about."""
        return int(len(text) * SAMPLES_PER_CHAR / self.spec.speed)

    def _take(self, piece: str | ToolCall) -> None:
        if isinstance(piece, ToolCall):
            self._call(piece)
            return
        if self._message is None:
            self._open()
        assert self._message is not None
        part = self._message.parts[0]
        part.text = (part.text or "") + piece
        kind = "response.output_audio_transcript.delta" if self.spec.audio else "response.output_text.delta"
        self._out.send(kind, **self._place(self._message).fields(), delta=piece)

    def _open(self) -> None:
        item = Item(self._out.new_id("item"), "message", "assistant", "in_progress")
        if self._after is not None and self._after.message is not None:
            item.continues = self._after.message.id
        self._message = item
        self._announce(item)
        item.parts.append(Part("output_audio" if self.spec.audio else "output_text", ""))
        place = self._place(item)
        part = {"type": "audio", "transcript": ""} if self.spec.audio else {"type": "text", "text": ""}
        self._out.send("response.content_part.added", **place.fields(), part=part)
        if self.spec.audio:
            self._playback.begin(BeginAudio(place, self.spec.format), item)

    def _call(self, call: ToolCall) -> None:
        item = Item(
            self._out.new_id("item"), "function_call", "assistant", "in_progress", call_id=self._out.new_id("call"),
            name=call.name,
        )  # fmt: skip
        self._called = True
        self._announce(item)
        place = {"response_id": self.id, "item_id": item.id, "output_index": self._items.index(item)}
        place["call_id"] = item.call_id
        self._out.send("response.function_call_arguments.delta", **place, delta=call.arguments)
        self._out.send("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
        item.arguments, item.status = call.arguments, "completed"
        self._finish_item(item)

    def _announce(self, item: Item) -> None:
        self._items.append(item)
        index = len(self._items) - 1
        self._out.send("response.output_item.added", response_id=self.id, output_index=index, item=item.to_dict())
        if self.spec.in_conversation:
            self._conversation.insert(item, done=False)

    def _finish_item(self, item: Item) -> None:
        index = self._items.index(item)
        self._out.send("response.output_item.done", response_id=self.id, output_index=index, item=item.to_dict())
        if self.spec.in_conversation:
            self._conversation.done(item)

    def _close_message(self, item: Item, item_status: Literal["completed", "incomplete"], status: Status) -> None:
        place, part = self._place(item), item.parts[0]
        text = part.text or ""
        if self.spec.audio:
            self._playback.end()
            self._out.send("response.output_audio.done", **place.fields())
            self._out.send("response.output_audio_transcript.done", **place.fields(), transcript=text)
            shown = {"type": "audio", "transcript": text}
        else:
            self._out.send("response.output_text.done", **place.fields(), text=text)
            shown = {"type": "text", "text": text}
        self._out.send("response.content_part.done", **place.fields(), part=shown)
        item.status = item_status
        if self.spec.audio and status in ("cancelled", "failed"):
            # the words run ahead of the sound: keep those that were spoken
            part.span = max(part.samples, self._estimate(text))
            shorten(part, part.samples)
        self._finish_item(item)

    def _place(self, item: Item) -> Place:
        return Place(self.id, item.id, self._items.index(item), 0)

    def _object(
        self, status: Status, details: dict[str, Any] | None, usage: Usage | None, metadata: dict[str, str]
    ) -> dict[str, Any]:
        spec = self.spec
        audio = {"output": {"format": format_object(spec.format), "voice": spec.voice}}
        return {
            "object": "realtime.response",
            "id": self.id,
            "conversation_id": self._conversation_id,
            "status": status,
            "status_details": details,
            "output": [item.to_dict() for item in self._items] if details is not None else [],
            "output_modalities": ["audio" if spec.audio else "text"],
            "audio": audio if spec.audio else None,
            "max_output_tokens": "inf" if spec.max_output_tokens is None else spec.max_output_tokens,
            "metadata": metadata or dict(spec.metadata) or None,
            "usage": None if usage is None else usage_object(usage),
        }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts of a response; one audio token is one speech step (40 ms)."""
    output = usage.completion_tokens + usage.speech_tokens
    return {
        "total_tokens": usage.prompt_tokens + output,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens,
            "audio_tokens": 0,
            "cached_tokens": usage.cached_tokens,
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": usage.speech_tokens},
    }
