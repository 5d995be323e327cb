"""Traces of what is asked for: one a turn, with a span for each stage and for the wait for a place.

The faces know no library of traces: a :class:`Tracer` is given to them, and without one nothing is done here.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from voicechat.contract.events import StageTimes, Usage
from voicechat.contract.logs import NAMES
from voicechat.faces.errors import ApiError
from voicechat.faces.keys import face_of

Attributes = Mapping[str, str | int | float | bool]

REQUEST_ID = web.RequestKey("request_id", str)
"""The ``x-request-id`` of a request."""

_CLIENT_ID = "X-Client-Request-Id"
MAX_CLIENT_ID = 512
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""https://www.w3.org/TR/trace-context/#traceparent-header"""


class Span(Protocol):
    """A piece of work. Times are nanoseconds of Unix time; ``None``: now."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""

    def child(self, name: str, start: int | None = None, attributes: Attributes | None = None) -> Span:
        """A piece of this piece."""

    def note(self, name: str, at: int | None = None) -> None:
        """Something happened in it."""

    def end(self, at: int | None = None, attributes: Attributes | None = None, error: str | None = None) -> None:
        """It is over; ``error`` says why it failed."""


class Tracer(Protocol):
    """Begins traces, and sends them away."""

    def begin(self, name: str, attributes: Attributes, carrier: Mapping[str, str] | None = None) -> Span:
        """A span on top; with ``carrier``, a request's headers, below the caller's own, if it names one."""


_SPAN: ContextVar[Span | None] = ContextVar("span", default=None)


def current_span() -> Span | None:
    """What is worked on in this context."""
    return _SPAN.get()


@contextlib.contextmanager
def under(span: Span | None) -> Iterator[None]:
    """What is begun in this block belongs to ``span``; so do its log lines, and those of its tasks."""
    if span is None:
        yield
        return
    before = _SPAN.set(span)
    named = NAMES.set({**NAMES.get(), "trace_id": span.trace_id, "span_id": span.span_id})
    try:
        yield
    finally:
        NAMES.reset(named)
        _SPAN.reset(before)


def request_middleware(tracer: Tracer | None) -> Middleware:
    """Name the request, for its answer and the log, and trace it if it asks for something.

    The name is ours, as OpenAI's is: it ends with the trace's, be it one that the caller has begun (``traceparent``).
    The caller's own name for it (``X-Client-Request-Id``, printable ASCII) goes into the log and the trace.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        span = None
        if tracer is not None and request.method == "POST" and face_of(request.path) is not None:
            resource = request.match_info.route.resource
            route = request.path if resource is None else resource.canonical
            about = {"http.request.method": request.method, "http.route": route}
            span = tracer.begin(f"{request.method} {route}", about, request.headers)
        named = {"request_id": _request_id(request, span)}
        request[REQUEST_ID] = named["request_id"]
        theirs = request.headers.get(_CLIENT_ID)
        if theirs is not None and not (len(theirs) <= MAX_CLIENT_ID and theirs.isascii() and theirs.isprintable()):
            message = f"'{_CLIENT_ID}' must be at most {MAX_CLIENT_ID} printable ASCII characters."
            return ApiError(400, message, code="invalid_client_request_id").response()
        if theirs is not None:
            named["client_request_id"] = theirs
        NAMES.set(named)  # the task is the request's own
        if span is None:
            return await handler(request)
        status = 0
        try:
            with under(span):
                response = await handler(request)
            status = response.status
            return response
        finally:
            about = {"client.request_id": theirs} if theirs is not None else {}
            error = "aborted" if not status else f"HTTP {status}" if status >= 500 else None
            span.end(attributes={**about, "http.response.status_code": status}, error=error)

    return middleware


def _request_id(request: web.Request, span: Span | None) -> str:
    if span is not None:
        return f"req_{span.trace_id}"
    given = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return f"req_{secrets.token_hex(16) if given is None else given[1]}"


class ResponseSpans:
    """The spans of one response of the cascade."""

    def __init__(self, parent: Span, face: str) -> None:
        self._start = time.time_ns()
        self._span = parent.child("response", self._start, {"voicechat.face": face})

    def finished(self, outcome: str, times: StageTimes, usage: Usage) -> None:
        """It ended: what its stages did follows from its times."""
        for name, start, end, notes in stages_of(times):
            span = self._span.child(name, self._at(start))
            for what, at in notes.items():
                if at is not None:
                    span.note(what, self._at(at))
            span.end(self._at(end))
        counts = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "voicechat.speech_tokens": usage.speech_tokens,
            "voicechat.audio_seconds": usage.audio_out_seconds,
        }
        self._span.end(attributes={"voicechat.outcome": outcome, **counts})

    def failed(self, outcome: str) -> None:
        """It did not come to its end."""
        self._span.end(attributes={"voicechat.outcome": outcome}, error=outcome)

    def _at(self, seconds: float) -> int:
        return self._start + round(seconds * 1e9)


def stages_of(times: StageTimes) -> Iterator[tuple[str, float, float, dict[str, float | None]]]:
    """Name, begin, end and noteworthy moments of what a response went through, in seconds since it began."""
    heard = times.ears or 0.0
    ready = heard if times.slot is None else times.slot
    over = times.done if times.done is not None else ready
    if times.ears is not None:
        yield "ears", 0.0, heard, {}
    if times.slot is not None:
        yield "queue", heard, ready, {}
    if times.thinker_first_token is not None:
        yield "thinker", ready, times.thinker_done or over, {"first token": times.thinker_first_token}
    if times.talker_first_code is not None:
        begun = times.thinker_first_token if times.thinker_first_token is not None else ready
        yield (
            "talker",
            min(begun, times.talker_first_code),
            times.talker_done or over,
            {"first code": times.talker_first_code},
        )
    if times.talker_first_chunk is not None:
        notes = {"first chunk": times.voicebox_first_chunk, "first audio": times.first_audio}
        yield "voicebox", times.talker_first_chunk, over, notes
