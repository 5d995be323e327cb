"""One spoken reply: its state, its timings, and the events that tell a client of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from voicechat.cascade.api import PCM_RATE, Response, StageTimes, Usage
from voicechat.faces import webrtc_events as events
from voicechat.faces.webrtc_history import heard_text

Status = Literal["completed", "cancelled", "failed", "incomplete"]

SAMPLES_PER_CHAR = PCM_RATE // 16
"""How much sound a character of text makes, about; used only while the reply's full length is not known."""


@dataclass(slots=True)
class TurnTimes:
    """When things happened, in seconds of the caller's clock; ``endpointing_ms`` is the silence that was waited for."""

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


@dataclass(slots=True)
class Reply:
    """A reply from its request until its last sample has been played or it was stopped.

    ``generating`` until the cascade is done with it; ``sounding`` while its sound plays, ``complete`` if
    it was made to its end.
    """

    generation: int
    response: Response
    times: TurnTimes
    voice: str
    id: str = field(default_factory=lambda: events.new_id("resp"))
    item_id: str = field(default_factory=lambda: events.new_id("item"))
    text: str = ""
    generating: bool = True
    sounding: bool = False
    complete: bool = False

    def opening(self, previous: str | None) -> list[events.Event]:
        """The events that open the response."""
        item = events.message_item(self.item_id, "assistant", "in_progress", [])
        return [
            events.event("response.created", response=self._object("in_progress", [], {}, None, None)),
            events.event("response.output_item.added", response_id=self.id, output_index=0, item=item),
            *events.item_events(item, previous, done=False),
            events.event("response.content_part.added", **self._place(), part={"type": "audio", "transcript": ""}),
        ]

    def delta(self, text: str) -> events.Event:
        """Adds ``text``, and the event that tells of it."""
        self.text += text
        return events.event("response.output_audio_transcript.delta", **self._place(), delta=text)

    def closing(
        self,
        status: Status,
        previous: str | None,
        *,
        reason: str | None = None,
        error: dict[str, str | None] | None = None,
        usage: Usage | None = None,
        stages: StageTimes | None = None,
    ) -> list[events.Event]:
        """The events that close the response, ``response.done`` last. Marks it as generated."""
        self.generating = False
        self.complete = status in ("completed", "incomplete")
        part = {"type": "audio", "transcript": self.text}
        content = [{"type": "output_audio", "transcript": self.text}]
        item = events.message_item(
            self.item_id, "assistant", "completed" if status == "completed" else "incomplete", content
        )
        details: dict[str, Any] = {"type": status}
        if reason is not None:
            details["reason"] = reason
        if error is not None:
            details["error"] = error
        done = self._object(status, [item], self.times.metadata(stages), details, usage)
        return [
            events.event("response.output_audio.done", **self._place()),
            events.event("response.output_audio_transcript.done", **self._place(), transcript=self.text),
            events.event("response.content_part.done", **self._place(), part=part),
            events.event("response.output_item.done", response_id=self.id, output_index=0, item=item),
            events.event("conversation.item.done", previous_item_id=previous, item=item),
            events.event("response.done", response=done),
        ]

    def heard(self, played: int, pushed: int) -> str:
        """The text of which the listener heard the sound, ``played`` of ``pushed`` samples so far."""
        total = pushed if self.complete else max(pushed, len(self.text) * SAMPLES_PER_CHAR)
        return heard_text(self.text, played, total)

    def buffer_event(self, what: Literal["started", "stopped", "cleared"]) -> events.Event:
        """``output_audio_buffer.*``."""
        return events.event(f"output_audio_buffer.{what}", response_id=self.id)

    def _place(self) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": self.item_id, "output_index": 0, "content_index": 0}

    def _object(
        self,
        status: str,
        output: list[dict[str, Any]],
        metadata: dict[str, str],
        details: dict[str, Any] | None,
        usage: Usage | None,
    ) -> dict[str, Any]:
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": output,
            "output_modalities": ["audio"],
            "audio": {"output": {"format": {"type": "audio/pcm", "rate": PCM_RATE}, "voice": self.voice}},
            "metadata": metadata or None,
            "usage": None if usage is None else events.usage_object(usage),
        }
