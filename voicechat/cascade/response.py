"""One response on the server's side: its events, its place in each stage, its times and counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from voicechat.cascade.chunks import Chunk, ChunkBuffer
from voicechat.cascade.leases import Lease
from voicechat.contract.calls import CallParser
from voicechat.contract.errors import CascadeError
from voicechat.contract.events import AudioDelta, Event, Finished, FinishReason, StageTimes, Usage
from voicechat.contract.requests import ResponseRequest, SpeechRequest


class Marks:
    """Seconds since the response began, each noted the first time it happens."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._at: dict[str, float] = {}

    def note(self, what: str) -> None:
        """Note that ``what`` has happened, unless it was noted before."""
        self._at.setdefault(what, time.perf_counter() - self._start)

    def get(self, what: str) -> float | None:
        """When ``what`` first happened."""
        return self._at.get(what)

    def since_start(self) -> float:
        """Seconds since the response began."""
        return time.perf_counter() - self._start


@dataclass(eq=False)
class ResponseState:
    """A running response. Faces see only ``id``, iteration and :meth:`cancel`."""

    number: int
    request: ResponseRequest | SpeechRequest
    on_cancel: Callable[[ResponseState], None]
    marks: Marks = field(default_factory=Marks)
    lease: Lease | None = None
    entered_at: float = 0.0
    task: asyncio.Task[None] | None = None
    chunks: ChunkBuffer | None = None
    decoding: Chunk | None = None
    state: bytes = b""
    """The VoiceBox's, at the end of the sound made so far; what it means the family knows."""
    voice: int = 0
    """Number of the voice that speaks."""
    sounding: bool = False
    """True while the VoiceBox holds something of its sound: from its first chunk to the end of its last."""
    attached: list[int] = field(default_factory=list)
    """Sounds and images that lie in the Thinker and that no request of it has used up."""
    inside: set[str] = field(default_factory=set)
    """Stages that hold this response and have not said Released."""
    acks: dict[str, int] = field(default_factory=dict)
    handoffs_us: list[float] = field(default_factory=list)
    spoken: CallParser | None = None
    """Of a reply that may call tools: takes the calls out of the text that is spoken."""
    finish: FinishReason = FinishReason.STOP
    text_done: bool = False
    speech_done: bool = False
    ended: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_in_seconds: float = 0.0
    sent_samples: int = 0
    unread_samples: int = 0
    """Of the sound that was sent, what the face has not taken yet."""
    on_read: Callable[[], None] | None = None
    """Called whenever the face has taken some sound."""
    _events: asyncio.Queue[Event | CascadeError] = field(default_factory=asyncio.Queue)

    @property
    def id(self) -> str:
        """Unique identifier of this response within the server's run."""
        return f"resp-{self.number}"

    def cancel(self) -> None:
        """Stop all stages; the iterator ends with ``Finished(CANCELLED)``."""
        if not self.ended:
            self.on_cancel(self)

    def emit(self, event: Event) -> None:
        """Queue an event for the face; nothing follows the end."""
        if not self.ended:
            if isinstance(event, AudioDelta):
                self.unread_samples += len(event.pcm)
            self._events.put_nowait(event)

    def end(self, outcome: Finished | CascadeError) -> None:
        """Queue the last event, once."""
        if not self.ended:
            self.ended = True
            self._events.put_nowait(outcome)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self._events.get()
            if isinstance(event, CascadeError):
                raise event
            if isinstance(event, AudioDelta):
                self.unread_samples -= len(event.pcm)
                if self.on_read is not None:
                    self.on_read()
            yield event
            if isinstance(event, Finished):
                return

    def finished(self, reason: FinishReason, rate: int) -> Finished:
        """The closing event, with counts and times."""
        marks, waits = self.marks, sorted(self.handoffs_us)
        marks.note("done")
        return Finished(
            reason,
            Usage(
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.cached_tokens,
                completion_tokens=self.completion_tokens,
                speech_tokens=self.chunks.steps if self.chunks else 0,
                audio_in_seconds=self.audio_in_seconds,
                audio_out_seconds=self.sent_samples / rate,
            ),
            StageTimes(
                ears=marks.get("ears"),
                slot=marks.get("slot"),
                thinker_first_token=marks.get("thinker_first_token"),
                thinker_done=marks.get("thinker_done"),
                talker_first_code=marks.get("talker_first_code"),
                talker_first_chunk=marks.get("talker_first_chunk"),
                talker_done=marks.get("talker_done"),
                voicebox_first_chunk=marks.get("voicebox_first_chunk"),
                first_audio=marks.get("first_audio"),
                done=marks.get("done"),
                handoff_us=waits[len(waits) // 2] if waits else None,
                rows=self.completion_tokens,
            ),
        )
