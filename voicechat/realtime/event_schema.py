"""The protocol as one JSON Schema (2020-12): every event that clients may send, and every one that they get. Pure."""

from __future__ import annotations

from typing import Any

from voicechat.contract.cascade import ModelInfo
from voicechat.realtime.client_events import MAX_EVENT_ID, MAX_INDEX
from voicechat.realtime.items import MAX_AUDIO_BYTES, MAX_ID
from voicechat.realtime.open_turn import TRANSCRIPTION
from voicechat.realtime.schemas import (
    TEXT,
    Schema,
    array,
    nullable,
    one_of,
    struct,
    text,
    whole,
    whole_number,
)
from voicechat.realtime.session_schema import item_schemas, response_schema, session_schema

_ID = text(MAX_ID)
_INDEX = whole_number(-MAX_INDEX, MAX_INDEX)
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SOUND: Schema = {"type": "string", "contentEncoding": "base64"}


def client_events(model: ModelInfo) -> dict[str, Schema]:
    """By type. Where an event has no fields of its own, others are not looked at."""
    shapes: dict[str, Schema] = {
        "session.update": struct({"session": session_schema(model)}, ("session",)),
        "input_audio_buffer.append": struct({"audio": _SOUND | {"maxLength": MAX_AUDIO_BYTES}}, ("audio",)),
        "input_audio_buffer.commit": struct({}, more=True),
        "input_audio_buffer.clear": struct({}, more=True),
        "output_audio_buffer.clear": struct({}, more=True),
        "conversation.item.create": struct(
            {"item": {"anyOf": item_schemas(model)}, "previous_item_id": nullable(_ID)}, ("item",)
        ),
        "conversation.item.delete": struct({"item_id": _ID}, ("item_id",), more=True),
        "conversation.item.retrieve": struct({"item_id": _ID}, ("item_id",), more=True),
        "conversation.item.truncate": struct(
            {"item_id": _ID, "content_index": _INDEX, "audio_end_ms": _INDEX},
            ("item_id", "content_index", "audio_end_ms"),
            more=True,
        ),
        "response.create": struct({"response": nullable(response_schema(model))}),
        "response.cancel": struct({"response_id": nullable(_ID)}, more=True),
    }
    named = {"event_id": {"description": f"The client's name for it, of {MAX_EVENT_ID} characters at most."}}
    return {kind: _typed(kind, shape, named) for kind, shape in shapes.items()}


def server_events() -> dict[str, Schema]:
    """By type."""
    part = {"item_id": TEXT, "content_index": _COUNT}
    place = {"response_id": TEXT, "output_index": _COUNT, **part}
    calls = {"response_id": TEXT, "item_id": TEXT, "output_index": _COUNT, "call_id": TEXT}
    listed = {"response_id": TEXT, "output_index": _COUNT, "item": _ITEM}
    added = {"previous_item_id": nullable(TEXT), "item": _ITEM}
    shown = {"anyOf": [whole({"type": {"const": "audio"}, "transcript": TEXT}),
                       whole({"type": {"const": "text"}, "text": TEXT})]}  # fmt: skip
    usage = whole({"type": {"const": "duration"}, "seconds": {"type": "number"}})
    failed = whole({**dict.fromkeys(("type", "message", "code"), TEXT), "param": {"type": "null"}})
    wrong = whole({"type": TEXT, "message": TEXT, **dict.fromkeys(("code", "param", "event_id"), nullable(TEXT))})
    started = {"audio_start_ms": _COUNT, "item_id": TEXT}
    stopped = {"audio_end_ms": _COUNT, "item_id": TEXT}
    fields: dict[str, dict[str, Schema]] = {
        "error": {"error": wrong},
        "session.created": {"session": _SESSION},
        "session.updated": {"session": _SESSION},
        "conversation.created": {"conversation": whole({"id": TEXT, "object": {"const": "realtime.conversation"}})},
        "input_audio_buffer.speech_started": started,
        "input_audio_buffer.speech_stopped": stopped,
        "input_audio_buffer.committed": {"item_id": TEXT, "previous_item_id": nullable(TEXT)},
        "input_audio_buffer.cleared": {},
        "input_audio_buffer.timeout_triggered": {"item_id": TEXT, "audio_start_ms": _COUNT, "audio_end_ms": _COUNT},
        "output_audio_buffer.started": {"response_id": TEXT},
        "output_audio_buffer.stopped": {"response_id": TEXT},
        "output_audio_buffer.cleared": {"response_id": TEXT},
        "conversation.item.created": added,
        "conversation.item.added": added,
        "conversation.item.done": added,
        "conversation.item.retrieved": {"item": _ITEM},
        "conversation.item.truncated": {**part, "audio_end_ms": _COUNT},
        "conversation.item.deleted": {"item_id": TEXT},
        f"{TRANSCRIPTION}.delta": {**part, "delta": TEXT},
        f"{TRANSCRIPTION}.completed": {**part, "transcript": TEXT, "usage": usage},
        f"{TRANSCRIPTION}.failed": {**part, "error": failed},
        "response.created": {"response": _RESPONSE},
        "response.done": {"response": _RESPONSE},
        "rate_limits.updated": {"rate_limits": array({})},
        "response.output_item.added": listed,
        "response.output_item.done": listed,
        "response.content_part.added": {**place, "part": shown},
        "response.content_part.done": {**place, "part": shown},
        "response.output_text.delta": {**place, "delta": TEXT},
        "response.output_text.done": {**place, "text": TEXT},
        "response.output_audio.delta": {**place, "delta": _SOUND},
        "response.output_audio.done": place,
        "response.output_audio_transcript.delta": {**place, "delta": TEXT},
        "response.output_audio_transcript.done": {**place, "transcript": TEXT},
        "response.function_call_arguments.delta": {**calls, "delta": TEXT},
        "response.function_call_arguments.done": {**calls, "name": TEXT, "arguments": TEXT},
    }
    return {kind: _typed(kind, whole(shape), {"event_id": TEXT}, ("event_id",)) for kind, shape in fields.items()}


def protocol_schema(model: ModelInfo) -> dict[str, Any]:
    """Both, as ``$defs`` by type, and ``ClientEvent`` and ``ServerEvent`` over all of a side."""
    client = {f"client.{kind}": shape for kind, shape in client_events(model).items()}
    server = {f"server.{kind}": shape for kind, shape in server_events().items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of /v1/realtime",
        "description": "Each WebSocket message, and each message of a call's data channel, is one of these as JSON.",
        "anyOf": [{"$ref": "#/$defs/ClientEvent"}, {"$ref": "#/$defs/ServerEvent"}],
        "$defs": {
            "ClientEvent": {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in client]},
            "ServerEvent": {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in server]},
            **client,
            **server,
        },
    }


def _typed(kind: str, shape: Schema, more: dict[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    properties = {"type": {"const": kind}, **more, **shape["properties"]}
    return {**shape, "properties": properties, "required": ["type", *required, *shape["required"]]}


_STATUS = one_of(("in_progress", "completed", "incomplete"))
_SHOWN = {"id": TEXT, "object": {"const": "realtime.item"}, "status": _STATUS}
_PART: Schema = struct(
    {
        "type": one_of(("input_text", "input_audio", "input_image", "output_text", "output_audio")),
        "text": nullable(TEXT),
        "transcript": nullable(TEXT),
        "audio": _SOUND,
        "detail": TEXT,
    },
    ("type",),
)
_ITEM: Schema = {
    "anyOf": [
        whole({**_SHOWN, "type": {"const": "message"}, "role": one_of(("system", "user", "assistant")),
               "content": array(_PART)}),
        whole({**_SHOWN, "type": {"const": "function_call"}, "call_id": TEXT, "name": TEXT, "arguments": TEXT}),
        whole({**_SHOWN, "type": {"const": "function_call_output"}, "call_id": TEXT, "output": TEXT}),
    ]
}  # fmt: skip
_CONVERSATION: Schema = struct(
    {"type": {"const": "realtime"}, "object": {"const": "realtime.session"}, "id": TEXT, "model": TEXT},
    ("type", "object", "id", "model", "audio", "instructions", "output_modalities", "expires_at"),
    more=True,
)
_WRITTEN: Schema = struct(
    {"type": {"const": "transcription"}, "object": {"const": "realtime.transcription_session"}, "id": TEXT},
    ("type", "object", "id", "audio", "expires_at"),
    more=True,
)
_SESSION: Schema = {"anyOf": [_CONVERSATION, _WRITTEN]}
_RESPONSE: Schema = whole(
    {
        "object": {"const": "realtime.response"},
        "id": TEXT,
        "conversation_id": nullable(TEXT),
        "status": one_of(("in_progress", "completed", "incomplete", "cancelled", "failed")),
        "status_details": nullable({"type": "object"}),
        "output": array(_ITEM),
        "output_modalities": array(one_of(("audio", "text"))),
        "audio": nullable({"type": "object"}),
        "max_output_tokens": {"anyOf": [_COUNT, {"const": "inf"}]},
        "metadata": nullable({"type": "object", "additionalProperties": TEXT}),
        "usage": nullable({"type": "object"}),
    }
)
