"""The events that clients send, typed; parsed strictly, with errors that name the field. Pure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from voicechat.realtime.errors import ClientError
from voicechat.realtime.fields import Fields, wrong_type
from voicechat.realtime.items import MAX_ID, decode_audio

MAX_EVENT_ID = 512
MAX_INDEX = 1 << 40
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
MAX_DEPTH_ERROR = "The message is nested too deeply."
_SHORT = 256 << 10
"""Characters up to which an append is read in one go: far below what the protocol allows."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """``session.update``: the raw session object, checked against the session in force."""

    session: Any


@dataclass(frozen=True, slots=True)
class AudioAppend:
    """``input_audio_buffer.append``: sound in the session's input format."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class AudioCommit:
    """``input_audio_buffer.commit``."""


@dataclass(frozen=True, slots=True)
class AudioClear:
    """``input_audio_buffer.clear``."""


@dataclass(frozen=True, slots=True)
class OutputClear:
    """``output_audio_buffer.clear``."""


@dataclass(frozen=True, slots=True)
class ItemCreate:
    """``conversation.item.create``: the item's fields, checked by the session."""

    item: Fields
    previous: str | None


@dataclass(frozen=True, slots=True)
class ItemDelete:
    """``conversation.item.delete``."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemRetrieve:
    """``conversation.item.retrieve``."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemTruncate:
    """``conversation.item.truncate``."""

    item_id: str
    content_index: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class ResponseCreate:
    """``response.create``: the raw overrides, checked against the session."""

    response: Any


@dataclass(frozen=True, slots=True)
class ResponseCancel:
    """``response.cancel``."""

    response_id: str | None


Body = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """One event; ``error`` in place of ``body`` if it can't be understood. ``id`` is the client's name for it."""

    id: str | None
    body: Body | None
    error: ClientError | None = None


class _Append(msgspec.Struct, forbid_unknown_fields=True):
    """An ``input_audio_buffer.append`` as most clients send it: dozens a second from each."""

    type: Literal["input_audio_buffer.append"]
    audio: bytes  # base64 in JSON
    event_id: str | None = None


_append_decoder = msgspec.json.Decoder(_Append)


def parse_event(text: str | bytes) -> ClientEvent:
    """One message of the client. Never raises: what is wrong with it is in ``error``."""
    if len(text) <= _SHORT:
        try:
            append = _append_decoder.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # something else, or wrong: it is read with care
            pass
        else:
            short = append.event_id is not None and len(append.event_id) <= MAX_EVENT_ID
            return ClientEvent(append.event_id if short else None, AudioAppend(append.audio))
    try:
        value = load_json(text)
    except RecursionError:
        return ClientEvent(None, None, ClientError(MAX_DEPTH_ERROR, code="invalid_json"))
    except ValueError as error:  # UnicodeDecodeError and UnicodeEncodeError too
        message = f"The message is not JSON: {error}"
        return ClientEvent(None, None, ClientError(message[:300], code="invalid_json"))
    event_id = value.get("event_id") if isinstance(value, dict) else None
    if not isinstance(event_id, str) or len(event_id) > MAX_EVENT_ID:
        event_id = None
    try:
        return ClientEvent(event_id, _body(value))
    except ClientError as error:
        return ClientEvent(event_id, None, error)


def load_json(text: str | bytes) -> Any:
    """A JSON value that can be sent on as it is. Raises ValueError, or RecursionError if it is nested too deeply."""
    if isinstance(text, bytes):
        text = text.decode()
    value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    if _SURROGATE.search(text):  # half a character may not go on to others
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _finite(number: str) -> float:
    """JSON knows no NaN and no infinity."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no number of JSON")
    return value


def _body(value: object) -> Body:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ClientError("An event is an object with a type.", code="invalid_event", param="type")
    fields = Fields(value)
    kind = value["type"]
    match kind:
        case "session.update":
            fields.only(("type", "event_id", "session"))
            return SessionUpdate(fields.need("session"))
        case "input_audio_buffer.append":
            fields.only(("type", "event_id", "audio"))
            return AudioAppend(decode_audio(fields, "audio"))
        case "input_audio_buffer.commit":
            return AudioCommit()
        case "input_audio_buffer.clear":
            return AudioClear()
        case "output_audio_buffer.clear":
            return OutputClear()
        case "conversation.item.create":
            fields.only(("type", "event_id", "item", "previous_item_id"))
            fields.need("item")
            item = fields.object("item")
            assert item is not None
            return ItemCreate(item, fields.string("previous_item_id", MAX_ID) or None)
        case "conversation.item.delete":
            return ItemDelete(fields.need_string("item_id", MAX_ID))
        case "conversation.item.retrieve":
            return ItemRetrieve(fields.need_string("item_id", MAX_ID))
        case "conversation.item.truncate":
            return ItemTruncate(
                fields.need_string("item_id", MAX_ID), _int(fields, "content_index"), _int(fields, "audio_end_ms")
            )
        case "response.create":
            fields.only(("type", "event_id", "response"))
            response = fields.get("response")
            if response is not None and not isinstance(response, dict):
                raise wrong_type("response", "an object", response)
            return ResponseCreate(response)
        case "response.cancel":
            return ResponseCancel(fields.string("response_id", MAX_ID))
    raise ClientError(f"There is no client event of type '{kind[:100]}'.", code="unknown_event", param="type")


def _int(fields: Fields, name: str) -> int:
    fields.need(name)
    return fields.integer(name, -MAX_INDEX, MAX_INDEX) or 0
