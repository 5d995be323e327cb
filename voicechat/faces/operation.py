"""What a handler takes and answers, said beside it; :mod:`voicechat.faces.openapi` makes the document from it.

Schemas are those of JSON Schema 2020-12, as OpenAPI 3.1 has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from voicechat.contract.cascade import ModelInfo
from voicechat.realtime.schemas import TEXT, Schema, array, nullable, one_of, struct, whole

__all__ = [
    "BINARY", "ERROR", "JSON", "PAGE", "SSE", "TEXT", "Operation", "Reply", "Schema", "array", "documented", "events",
    "nullable", "one_of", "operation_of", "struct", "whole",
]  # fmt: skip

Handler = TypeVar("Handler", bound=Callable[..., Any])

JSON = "application/json"
SSE = "text/event-stream"
BINARY: Schema = {}
"""Bytes of a media type that is not JSON: OpenAPI 3.1 has an empty schema for them."""


def events(*shapes: Schema) -> Schema:
    """Server-sent events, each with one of these as JSON; some streams say at last that they are done."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": list(shapes)}}
    return struct({"data": {"anyOf": [data, {"const": "[DONE]"}]}, "event": {"const": "message"}}, ("data",))


ERROR: Schema = whole(
    {"error": whole({"message": TEXT, "type": TEXT, "param": nullable(TEXT), "code": nullable(TEXT)})}
)
"""The body of every answer that is an error."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer that is no error: ``media`` are its schemas by content type; ``headers`` what each says."""

    text: str
    media: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. ``body`` are schemas by content type; ``errors`` the statuses of answers that are errors,
    beside those that every operation of its kind may have; ``query`` the parameters by name."""

    summary: str
    replies: Mapping[int, Reply]
    errors: tuple[int, ...] = ()
    body: Mapping[str, Schema] | None = None
    body_required: bool = True
    query: Mapping[str, Schema] = field(default_factory=dict)
    required_query: tuple[str, ...] = ()
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Bodies, by a word for each; of the first content type."""
    api: bool = True
    """False: it is no part of the API, as the page's files are not."""
    description: str = ""


Described = Operation | Callable[[ModelInfo], Operation]

_DESCRIBED: WeakKeyDictionary[Callable[..., Any], Described] = WeakKeyDictionary()

PAGE = Operation("The page", {}, api=False)


def documented(operation: Described) -> Callable[[Handler], Handler]:
    """Say of a handler what it does; what depends on the served model is made by a function of it."""

    def note(handler: Handler) -> Handler:
        _DESCRIBED[handler] = operation
        return handler

    return note


def operation_of(handler: Callable[..., Any], model: ModelInfo) -> Operation | None:
    """What was said of a handler, which may be a method; None if nothing was."""
    found = _DESCRIBED.get(getattr(handler, "__func__", handler))
    return found(model) if callable(found) else found
