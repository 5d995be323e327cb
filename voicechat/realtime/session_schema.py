"""Schemas of what clients may set of a session and a response: what :mod:`voicechat.realtime.settings` reads. Pure."""

from __future__ import annotations

from typing import get_args

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.sound import PCM_RATE
from voicechat.realtime import extras, items, settings
from voicechat.realtime.policy import Eagerness
from voicechat.realtime.schemas import (
    TEXT,
    Schema,
    array,
    metadata_schema,
    nullable,
    number,
    one_of,
    struct,
    text,
    whole_number,
)
from voicechat.realtime.tools import MAX_TOOLS

_BOOLEAN: Schema = {"type": "boolean"}
_MODALITIES: Schema = {"enum": [["text"], ["audio"], None]}
_MAX_TOKENS: Schema = {
    "anyOf": [whole_number(1, settings.MAX_OUTPUT_TOKENS), {"enum": ["inf", None]}],
}
_KEPT_TEXT = text(extras.MAX_TEXT)


def _voice(model: ModelInfo) -> Schema:
    name = one_of(tuple(dict.fromkeys((*model.voices, *settings.PRESET_VOICES))))
    return {"anyOf": [name, struct({"id": name}, ("id",), more=True), {"type": "null"}]}


def _format() -> Schema:
    pcm = struct({"type": one_of(("audio/pcm",)), "rate": {"enum": [PCM_RATE, None]}}, ("type",))
    others = [name for name in settings.FORMATS if name != "audio/pcm"]
    telephone = struct({"type": one_of(others), "rate": {"enum": [8000, None]}}, ("type",))
    return {"anyOf": [pcm, telephone, {"type": "null"}]}


def _tools() -> Schema:
    tool = struct(
        {
            "type": one_of(("function",)),
            "name": text(64),
            "description": nullable(TEXT),
            "parameters": nullable({"type": "object"}),
            "strict": {},
        },
        ("type", "name"),
    )
    return nullable(array(tool, maxItems=MAX_TOOLS))


def _tool_choice() -> Schema:
    named = struct({"type": one_of(("function",)), "name": text(64)}, ("type", "name"), more=True)
    return {"anyOf": [one_of(("auto", "none", "required")), named, {"type": "null"}]}


def _detection() -> Schema:
    return nullable(
        struct(
            {
                "type": nullable(one_of(("server_vad", "semantic_vad"))),
                "threshold": nullable(number(0, 1)),
                "prefix_padding_ms": nullable(whole_number(0, 5000)),
                "silence_duration_ms": nullable(whole_number(20, 10_000)),
                "idle_timeout_ms": nullable(whole_number(1000, 600_000)),
                "create_response": nullable(_BOOLEAN),
                "interrupt_response": nullable(_BOOLEAN),
                "eagerness": nullable(one_of(get_args(Eagerness))),
            }
        )
    )


def _reasoning() -> Schema:
    return nullable(struct({"effort": nullable(one_of(extras.EFFORTS))}))


def _input() -> Schema:
    reduction = struct({"type": nullable(one_of(("near_field", "far_field"))), "strength": nullable(number(0, 1))})
    transcription = struct(
        {
            **dict.fromkeys(("model", "language", "prompt"), nullable(_KEPT_TEXT)),
            **dict.fromkeys(("languages", "keywords"), nullable(array(TEXT))),
            "delay": nullable(one_of(extras.DELAYS)),
        }
    )
    return struct(
        {
            "format": _format(),
            "noise_reduction": nullable(reduction),
            "transcription": nullable(transcription),
            "turn_detection": _detection(),
        }
    )


def session_schema(model: ModelInfo) -> Schema:
    """A session object, which may be partial."""
    speed = nullable(number(settings.MIN_SPEED, settings.MAX_SPEED))
    output = struct({"format": _format(), "voice": _voice(model), "speed": speed})
    tracing = struct(
        {"workflow_name": nullable(_KEPT_TEXT), "group_id": nullable(_KEPT_TEXT),
         "metadata": nullable({"type": "object"})}
    )  # fmt: skip
    limits = struct({"post_instructions": nullable(whole_number(0, 1 << 30))})
    truncation = struct(
        {"type": one_of(("retention_ratio",)), "retention_ratio": number(0, 1), "token_limits": nullable(limits)},
        ("type", "retention_ratio"),
    )
    properties: dict[str, Schema] = {
        **_named("realtime"),
        "model": nullable(text(256)),
        "instructions": nullable(text(settings.MAX_INSTRUCTIONS)),
        "voice": _voice(model),
        "latency_first": nullable(_BOOLEAN),
        "output_modalities": _MODALITIES,
        "max_output_tokens": _MAX_TOKENS,
        "tools": _tools(),
        "tool_choice": _tool_choice(),
        "parallel_tool_calls": nullable(_BOOLEAN),
        "tracing": {"anyOf": [one_of(("auto",)), tracing, {"type": "null"}]},
        "truncation": {"anyOf": [one_of(("auto", "disabled")), truncation, {"type": "null"}]},
        "include": nullable(array(one_of((extras.INCLUDED,)))),
        "prompt": {"type": "null"},
        "reasoning": _reasoning(),
        "audio": nullable(struct({"input": nullable(_input()), "output": nullable(output)})),
    }
    assert properties.keys() == set(settings.SESSION_FIELDS)
    written: dict[str, Schema] = {
        **_named("transcription"),
        "include": nullable(array(one_of((extras.INCLUDED,)))),
        "audio": nullable(struct({"input": nullable(_input())})),
    }
    assert written.keys() == set(settings.TRANSCRIPTION_FIELDS)
    return {"anyOf": [struct(properties), struct({**written, "type": one_of(("transcription",))}, ("type",))]}


def _named(kind: str) -> dict[str, Schema]:
    return {"type": nullable(one_of((kind,))), "object": {}, "id": {}, "expires_at": {}}


def response_schema(model: ModelInfo) -> Schema:
    """The object of a ``response.create``."""
    reference = struct({"type": one_of(("item_reference",)), "id": text(items.MAX_ID)}, ("type", "id"), more=True)
    output = struct({"format": _format(), "voice": _voice(model)})
    properties: dict[str, Schema] = {
        "audio": nullable(struct({"output": nullable(output)})),
        "conversation": nullable(one_of(("auto", "none"))),
        "input": nullable(array({"anyOf": [*item_schemas(model), reference]}, maxItems=settings.MAX_INPUT_ITEMS)),
        "instructions": nullable(text(settings.MAX_INSTRUCTIONS)),
        "max_output_tokens": _MAX_TOKENS,
        "metadata": nullable(metadata_schema()),
        "output_modalities": _MODALITIES,
        "parallel_tool_calls": nullable(_BOOLEAN),
        "prompt": {"type": "null"},
        "reasoning": {},
        "tool_choice": _tool_choice(),
        "tools": _tools(),
    }
    assert properties.keys() == set(settings.RESPONSE_FIELDS)
    return struct(properties)


def item_schemas(model: ModelInfo) -> list[Schema]:
    """Items that a client may create, one schema for each kind: what :func:`items.parse_item` reads."""
    base: dict[str, Schema] = {"id": nullable(text(items.MAX_ID)), "object": {}, "status": {}}
    words = nullable(text(items.MAX_TEXT))
    sound: Schema = {"type": "string", "maxLength": items.MAX_AUDIO_BYTES, "contentEncoding": "base64"}

    def part(kinds: tuple[str, ...], **fields: Schema) -> Schema:
        others: dict[str, Schema] = {name: {} for name in ("text", "transcript", "audio", "format")}
        required = ["type", *(name for name, schema in fields.items() if schema.get("type") == "string")]
        return struct({"type": one_of(kinds), **others, **fields}, required)

    def message(role: str, *parts: Schema) -> Schema:
        content = array({"anyOf": list(parts)}, minItems=1, maxItems=items.MAX_PARTS)
        kind = {"type": one_of(("message",)), "role": one_of((role,)), "content": content, "phase": {}}
        return struct({**base, **kind}, ("type", "role", "content"))

    typed = part(("input_text",), text=text(items.MAX_TEXT))
    heard = part(("input_audio",), audio=sound, transcript=words)
    url: Schema = {"type": "string", "maxLength": items.MAX_IMAGE_URL, "pattern": "^[dD][aA][tT][aA]:"}
    seen = struct(
        {"type": one_of(("input_image",)), "image_url": url, "detail": nullable(one_of(items.DETAILS))},
        ("type", "image_url"),
    )
    said = part(("output_text", "text"), text=text(items.MAX_TEXT))
    spoken = part(("output_audio", "audio"), transcript=words)
    call = {"type": one_of(("function_call",)), "call_id": nullable(text(items.MAX_ID)), "name": text(items.MAX_ID),
            "arguments": text(items.MAX_TEXT)}  # fmt: skip
    output = {"type": one_of(("function_call_output",)), "call_id": text(items.MAX_ID), "output": text(items.MAX_TEXT)}
    return [
        message("system", typed),
        message("user", typed, heard, *([seen] if model.sees else [])),
        message("assistant", said, spoken),
        struct({**base, **call}, ("type", "name", "arguments")),
        struct({**base, **output}, ("type", "call_id", "output")),
    ]
