"""Server events of a WebRTC session in the shapes of the OpenAI Realtime GA protocol. Pure: dictionaries out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from voicechat.cascade.api import PCM_RATE, CascadeError, InvalidRequest, NotReady, Overloaded, Usage

Event = dict[str, Any]


def new_id(prefix: str) -> str:
    """A fresh identifier such as ``item_5f3a…``."""
    return f"{prefix}_{secrets.token_hex(12)}"


def event(kind: str, **fields: Any) -> Event:
    """An event of type ``kind``."""
    return {"type": kind, "event_id": new_id("event"), **fields}


def error(
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
    client_event_id: str | None = None,
) -> Event:
    """An ``error`` event; ``client_event_id`` names the client's event that caused it."""
    inner = {"type": kind, "message": message, "code": code, "param": param, "event_id": client_event_id}
    return event("error", error=inner)


def session_object(
    session_id: str,
    *,
    model: str,
    instructions: str,
    voice: str,
    turn_detection: Mapping[str, Any],
    max_output_tokens: int | None,
    expires_at: int,
) -> dict[str, Any]:
    """The session as ``session.created`` and ``session.updated`` carry it."""
    pcm = {"type": "audio/pcm", "rate": PCM_RATE}
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": model,
        "output_modalities": ["audio"],
        "instructions": instructions,
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf" if max_output_tokens is None else max_output_tokens,
        "tracing": None,
        "truncation": "auto",
        "expires_at": expires_at,
        "audio": {
            "input": {
                "format": pcm,
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": dict(turn_detection),
            },
            "output": {"format": pcm, "voice": voice, "speed": 1.0},
        },
    }


def message_item(item_id: str, role: str, status: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A message item of the conversation."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": [dict(part) for part in content],
    }


def item_events(item: Mapping[str, Any], previous: str | None, *, done: bool) -> list[Event]:
    """Announces ``item``: created and added, and also done if it is complete already."""
    kinds = ["conversation.item.created", "conversation.item.added"] + (["conversation.item.done"] if done else [])
    return [event(kind, previous_item_id=previous, item=dict(item)) for kind in kinds]


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts of a response; one audio token is one speech step (40 ms)."""
    output = usage.completion_tokens + usage.speech_tokens
    return {
        "total_tokens": usage.prompt_tokens + output,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens,
            "audio_tokens": 0,
            "cached_tokens": usage.cached_tokens,
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": usage.speech_tokens},
    }


def cascade_error(error: CascadeError | TimeoutError) -> dict[str, str | None]:
    """The ``error`` object of a response or a transcription that failed."""
    match error:
        case TimeoutError():
            return {"type": "server_error", "code": "timeout", "message": "It took too long."}
        case InvalidRequest():
            return {"type": "invalid_request_error", "code": error.code, "message": str(error)}
        case NotReady():
            return {"type": "server_error", "code": "not_ready", "message": str(error)}
        case Overloaded():
            return {"type": "server_error", "code": "overloaded", "message": str(error)}
    return {"type": "server_error", "code": "stage_failed", "message": str(error)}
