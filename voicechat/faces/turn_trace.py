"""The traces of a realtime session: one for each turn, from the user's first sound, or the client's wish, to the end of
the reply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from voicechat.faces.tracing import Span, Tracer
from voicechat.realtime.outbox import Event


class TurnTraces:
    """Follows the events that a session sends."""

    def __init__(self, tracer: Tracer, session_id: str) -> None:
        self._tracer = tracer
        self._session_id = session_id
        self._turn: Span | None = None
        """That of the user, which nothing has answered yet."""
        self._answered: Span | None = None
        """That to which a reply is being made."""
        self._speech: Span | None = None

    def on_event(self, event: Event) -> None:
        """The session sends ``event``."""
        match event["type"]:
            case "input_audio_buffer.speech_started":
                self._speech = self._begun().child("speech")
            case "input_audio_buffer.speech_stopped":
                self._end_speech()
            case "input_audio_buffer.committed":
                self._begun().note("committed")
            case "input_audio_buffer.cleared" if self._turn is not None:
                self._end_speech()
                self._turn.end(attributes={"voicechat.turn": "discarded"})
                self._turn = None
            case "response.created":
                if self._answered is not None:  # its reply never ended, as far as the client was told
                    self._answered.end()
                self._answered, self._turn = self._begun(), None
            case "response.done" if self._answered is not None:
                status = str(event["response"]["status"])
                error = "failed" if status == "failed" else None
                self._answered.end(attributes={"voicechat.turn": status}, error=error)
                self._answered = None

    def answering(self) -> Span:
        """The turn that a response of the cascade is for."""
        return self._turn or self._answered or self._begun()

    @contextmanager
    def transcribing(self) -> Iterator[None]:
        """The ears are at work on something that the user said."""
        span = self.answering().child("transcription")
        error: str | None = "cancelled"
        try:
            yield
            error = None
        finally:
            span.end(error=error)

    def close(self) -> None:
        """The session is over."""
        self._end_speech()
        for span in (self._turn, self._answered):
            if span is not None:
                span.end(attributes={"voicechat.turn": "closed"})
        self._turn = self._answered = None

    def _begun(self) -> Span:
        if self._turn is None:
            self._turn = self._tracer.begin("turn", {"session.id": self._session_id})
        return self._turn

    def _end_speech(self) -> None:
        if self._speech is not None:
            self._speech.end()
            self._speech = None
