"""Words for JSON Schema 2020-12. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}


def nullable(schema: Schema) -> Schema:
    """Also null, which counts as not given."""
    if "enum" in schema:
        types = {"type": [schema["type"], "null"]} if isinstance(schema.get("type"), str) else {}
        return {**schema, **types, "enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def text(longest: int) -> Schema:
    """A string of at most ``longest`` characters."""
    return {"type": "string", "maxLength": longest}


def whole_number(low: int, high: int) -> Schema:
    """An integer from ``low`` to ``high``."""
    return {"type": "integer", "minimum": low, "maximum": high}


def number(low: float, high: float) -> Schema:
    """A number from ``low`` to ``high``."""
    return {"type": "number", "minimum": low, "maximum": high}


def one_of(values: Sequence[str]) -> Schema:
    """One of these strings."""
    return {"type": "string", "enum": list(values)}


def array(items: Schema, **bounds: Any) -> Schema:
    """A list."""
    return {"type": "array", "items": items, **bounds}


def struct(properties: Mapping[str, Schema], required: Sequence[str] = (), *, more: bool = False) -> Schema:
    """An object; ``more``: with other fields too."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": more,
    }


def whole(properties: Mapping[str, Schema]) -> Schema:
    """An object all of whose fields are there."""
    return struct(properties, tuple(properties))


def metadata_schema() -> Schema:
    """A client's notes: 16 pairs of texts at most."""
    return {
        "type": "object",
        "maxProperties": 16,
        "propertyNames": {"maxLength": 64},
        "additionalProperties": text(512),
    }
