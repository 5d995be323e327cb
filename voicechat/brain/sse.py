"""Server-sent events from bytes that come cut anywhere. Pure."""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass

MAX_EVENT = 1 << 22
"""Most characters of one event; more is no event stream of a chat endpoint."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: its ``type`` (empty for the usual one) and its data, lines joined by newlines."""

    type: str
    data: str


class SseParser:
    """Takes bytes, gives the events that are complete. Comments, keep-alives and unknown fields are skipped.

    Lines may end in LF, CRLF or CR. Raises ValueError for bytes that are not UTF-8, and for an event without end.
    """

    def __init__(self) -> None:
        # A line feed that may follow a carriage return, and bytes that are no character yet, are waited for.
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
        self._rest = ""
        self._type = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Events completed by ``data``."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> list[SseEvent]:
        """The stream is over: an event that lacks only its empty line is given too."""
        return self._take(self._decoder.decode(b"", final=True) + "\n\n")

    def _take(self, text: str) -> list[SseEvent]:
        *lines, self._rest = (self._rest + text).split("\n")
        events: list[SseEvent] = []
        for line in lines:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                self._data.append(value)
                self._size += len(value)
            elif field == "event":
                self._type = value
            elif not line:
                if self._data:
                    events.append(SseEvent(self._type, "\n".join(self._data)))
                self._type, self._data, self._size = "", [], 0
        if len(self._rest) + self._size > MAX_EVENT:
            raise ValueError(f"an event has more than {MAX_EVENT} characters")
        return events
