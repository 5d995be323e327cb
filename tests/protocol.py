"""Server events are held against two descriptions: the types of the ``openai`` package, and our own schema."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from voicechat.realtime.event_schema import server_events

_OPENAI: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
SERVER = {kind: Draft202012Validator(schema) for kind, schema in server_events().items()}


def check_server_event(event: dict[str, Any]) -> None:
    """Raise unless ``event``, as it came over the wire, is one of the protocol's."""
    _OPENAI.validate_python(event)
    SERVER[event["type"]].validate(event)
