"""Server-sent events from bytes that come cut anywhere. Pure."""

from __future__ import annotations

import codecs
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
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""
        self._begun = False
        self._type = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Events completed by ``data``."""
        return self._take(self._decoder.decode(data), last=False)

    def finish(self) -> list[SseEvent]:
        """The stream is over: an event that lacks only its empty line is given too."""
        events = self._take(self._decoder.decode(b"", final=True), last=True)
        if self._rest:
            self._line(self._rest)
            self._rest = ""
        if self._data:
            events.append(self._event())
        return events

    def _take(self, text: str, *, last: bool) -> list[SseEvent]:
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix("\ufeff")
        self._rest += text
        events: list[SseEvent] = []
        start = 0
        while (end := self._line_end(start, last)) is not None:
            line, start = self._rest[start : end[0]], end[1]
            if line:
                self._line(line)
            elif self._data:
                events.append(self._event())
            else:
                self._type = ""
        self._rest = self._rest[start:]
        if len(self._rest) + self._size > MAX_EVENT:
            raise ValueError(f"an event has more than {MAX_EVENT} characters")
        return events

    def _line_end(self, start: int, last: bool) -> tuple[int, int] | None:
        """Where the line from ``start`` on ends, and where the next begins; None if that is not known yet."""
        feed, ret = self._rest.find("\n", start), self._rest.find("\r", start)
        if ret < 0 or 0 <= feed < ret:
            return None if feed < 0 else (feed, feed + 1)
        if ret + 1 == len(self._rest):
            return (ret, ret + 1) if last else None  # the line feed of a CRLF may follow
        return ret, ret + (2 if self._rest[ret + 1] == "\n" else 1)

    def _line(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._size += len(value)
        elif field == "event":
            self._type = value

    def _event(self) -> SseEvent:
        event = SseEvent(self._type, "\n".join(self._data))
        self._type, self._data, self._size = "", [], 0
        return event
