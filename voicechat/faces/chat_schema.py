"""Schemas of chat completions, made from the tables by which requests are read. What one field's value means for
another (``audio`` and ``modalities``, formats and ``stream``) schemas don't say; the parser does."""

from __future__ import annotations

from typing import Any

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.events import FinishReason, StageTimes, Usage
from voicechat.faces import chat_messages, chat_request, chat_tools
from voicechat.faces.operation import (
    ERROR,
    JSON,
    SSE,
    TEXT,
    Operation,
    Reply,
    Schema,
    array,
    events,
    nullable,
    one_of,
    struct,
    whole,
)
from voicechat.faces.voices import voice_schema
from voicechat.media.encode import FORMATS
from voicechat.realtime.schemas import metadata_schema

_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_BOOLEAN: Schema = {"type": "boolean"}
_SIXTY_FOUR = {"minimum": -(2**63), "maximum": 2**63 - 1}
_ENDS = tuple(str(reason) for reason in FinishReason if reason is not FinishReason.CANCELLED)
_IMAGE_URL: Schema = {"type": "string", "pattern": "^([dD][aA][tT][aA]:|[hH][tT][tT][pP][sS]?://)"}
_CALL = struct(
    {
        "id": {"type": "string", "maxLength": 128},
        "type": one_of(("function",)),
        "function": struct({"name": {"type": "string", "maxLength": 64}, "arguments": TEXT}, ("name", "arguments")),
    },
    ("id", "type", "function"),
)


def request_schema(model: ModelInfo) -> Schema:
    """The body of a request."""
    tokens = {"type": "integer", "minimum": 1, "maximum": model.context_tokens}
    stop = {"type": "string", "minLength": 1, "maxLength": chat_request.MAX_STOP_LENGTH}
    modalities = (["text"], ["audio"], ["text", "audio"], ["audio", "text"])
    name = {"type": "string", "maxLength": chat_tools.MAX_NAME}
    function = struct(
        {"name": name, "description": nullable(TEXT), "parameters": nullable({"type": "object"}),
         "strict": nullable(_BOOLEAN)},
        ("name",),
    )  # fmt: skip
    served: dict[str, Schema] = {
        "model": one_of((model.name,)),
        "messages": array(_message(model), minItems=1, maxItems=chat_messages.MAX_MESSAGES),
        "modalities": {"enum": [*modalities, None]},
        "audio": nullable(
            struct({"voice": voice_schema(model), "format": one_of(tuple(FORMATS))}, ("voice", "format"))
        ),
        "stream": nullable(_BOOLEAN),
        "stream_options": nullable(
            struct({"include_usage": nullable(_BOOLEAN), "include_obfuscation": {"enum": [False, None]}})
        ),
        "latency_first": nullable(_BOOLEAN),
        "include_details": nullable(_BOOLEAN),
        "store": nullable(_BOOLEAN),
        "user": nullable(TEXT),
        "max_tokens": nullable(tokens),
        "max_completion_tokens": nullable(tokens),
        "temperature": nullable(_NUMBER | {"minimum": 0, "maximum": 2}),
        "top_p": nullable(_NUMBER | {"minimum": 0, "maximum": 1}),
        "seed": nullable(_INTEGER | _SIXTY_FOUR),
        "stop": {"anyOf": [stop, array(stop, maxItems=chat_request.MAX_STOP), {"type": "null"}]},
        "metadata": nullable(metadata_schema()),
        "tools": nullable(
            array(
                struct({"type": one_of(("function",)), "function": function}, ("type", "function")),
                maxItems=chat_tools.MAX_TOOLS,
            )
        ),
        "tool_choice": {
            "anyOf": [
                one_of(chat_tools.CHOICES),
                struct({"type": one_of(("function",)), "function": struct({"name": name}, ("name",))},
                       ("type", "function")),
                {"type": "null"},
            ]
        },
    }  # fmt: skip
    assert served.keys() == chat_request.SERVED
    hints = {name: nullable({"type": "string", "maxLength": 512}) for name in sorted(chat_request.HINTS)}
    ignored: dict[str, Schema] = {
        name: {"enum": [*values, None], "description": "Taken from other servers' clients; it changes nothing."}
        for name, values in chat_request.IGNORABLE.items()
    }
    return struct(served | hints | ignored, ("model", "messages"))


def _message(model: ModelInfo) -> Schema:
    name = nullable({"type": "string", "maxLength": 64})
    text = struct({"type": one_of(("text",)), "text": TEXT, "prompt_cache_breakpoint": {}}, ("type", "text"))
    refusal = struct(
        {"type": one_of(("refusal",)), "refusal": TEXT, "prompt_cache_breakpoint": {}}, ("type", "refusal")
    )
    sound = struct(
        {
            "type": one_of(("input_audio",)),
            "input_audio": struct(
                {
                    "data": {"type": "string", "contentEncoding": "base64"},
                    "format": one_of(chat_messages.INPUT_FORMATS),
                },
                ("data", "format"),
            ),
            "prompt_cache_breakpoint": {},
        },
        ("type", "input_audio"),
    )
    image = struct(
        {
            "type": one_of(("image_url",)),
            "image_url": struct(
                {
                    "url": _IMAGE_URL,
                    "detail": nullable(TEXT),
                },
                ("url",),
            ),
            "prompt_cache_breakpoint": {},
        },
        ("type", "image_url"),
    )
    shapes = {"text": text, "refusal": refusal, "input_audio": sound, "image_url": image}

    def content(role: str) -> Schema:
        kinds = chat_messages.parts_of(role, sees=model.sees)
        return {"anyOf": [TEXT, array({"anyOf": [shapes[kind] for kind in kinds]}, minItems=1)]}

    told = struct({"role": one_of(("system", "developer")), "content": content("system"), "name": name},
                  ("role", "content"))  # fmt: skip
    user = struct({"role": one_of(("user",)), "content": content("user"), "name": name}, ("role", "content"))
    earlier = struct(
        {
            "role": one_of(("assistant",)),
            "content": nullable(content("assistant")),
            "name": name,
            "refusal": nullable(TEXT),
            "audio": nullable(
                struct(
                    {"id": {"type": "string", "maxLength": 128}, "data": {}, "transcript": {}, "expires_at": {}},
                    ("id",),
                )
            ),
            "tool_calls": nullable(array(_CALL)),
            "function_call": {"type": "null"},
            "annotations": {},
        },
        ("role",),
    )
    result = struct(
        {"role": one_of(("tool",)), "content": content("tool"), "tool_call_id": {"type": "string", "maxLength": 128}},
        ("role", "content", "tool_call_id"),
    )
    return {"anyOf": [told, user, earlier, result]}


def _counts(*names: str) -> Schema:
    return whole({name: {"type": "integer", "minimum": 0} for name in names})


def usage_schema() -> Schema:
    """The object ``usage``."""
    numbers = {"type": "integer", "minimum": 0}
    return whole(
        {
            "prompt_tokens": numbers,
            "completion_tokens": numbers,
            "total_tokens": numbers,
            "prompt_tokens_details": _counts("audio_tokens", "cached_tokens", "text_tokens"),
            "completion_tokens_details": _counts(
                "accepted_prediction_tokens", "audio_tokens", "reasoning_tokens", "rejected_prediction_tokens",
                "text_tokens",
            ),
        }
    )  # fmt: skip


def _details() -> Schema:
    times = {name: nullable(_NUMBER) for name in StageTimes.__slots__}
    return whole({"heard": array(TEXT), "times": whole(times), "usage": whole(dict.fromkeys(Usage.__slots__, _NUMBER))})


def completion_schema(model: ModelInfo) -> Schema:
    """A whole reply."""
    audio = whole({"id": TEXT, "data": TEXT, "expires_at": _INTEGER, "transcript": TEXT})
    message = struct(
        {
            "role": one_of(("assistant",)),
            "content": nullable(TEXT),
            "refusal": {"type": "null"},
            "annotations": array({}, maxItems=0),
            "audio": audio,
            "tool_calls": array(_CALL, minItems=1),
        },
        ("role", "content", "refusal", "annotations"),
    )
    choice = whole(
        {
            "index": {"const": 0},
            "message": message,
            "logprobs": {"type": "null"},
            "finish_reason": one_of((*_ENDS, "tool_calls")),
        }
    )
    always = {
        **_head(model, "chat.completion"),
        "choices": array(choice, minItems=1, maxItems=1),
        "usage": usage_schema(),
    }
    metadata = {"type": "object", "additionalProperties": TEXT}
    return struct({**always, "metadata": metadata, "details": _details()}, tuple(always))


def chunk_schema(model: ModelInfo) -> Schema:
    """One event of a stream."""
    call = {"index": {"type": "integer", "minimum": 0}, **_CALL["properties"]}
    audio = struct({"id": TEXT, "data": TEXT, "transcript": TEXT, "expires_at": _INTEGER})
    delta = struct(
        {
            "role": one_of(("assistant",)),
            "content": nullable(TEXT),
            "refusal": {"type": "null"},
            "audio": audio,
            "tool_calls": array(whole(call)),
        }
    )
    choice = struct(
        {
            "index": {"const": 0},
            "delta": delta,
            "logprobs": {"type": "null"},
            "finish_reason": nullable(one_of((*_ENDS, "tool_calls"))),
        },
        ("index", "delta"),
    )
    always = {**_head(model, "chat.completion.chunk"), "choices": array(choice, maxItems=1)}
    return struct({**always, "usage": nullable(usage_schema()), "details": _details()}, tuple(always))


def _head(model: ModelInfo, kind: str) -> dict[str, Schema]:
    return {
        "id": TEXT,
        "object": {"const": kind},
        "created": _INTEGER,
        "model": {"const": model.name},
        "service_tier": TEXT,
        "system_fingerprint": TEXT,
    }


def operation(model: ModelInfo) -> Operation:
    """``POST /v1/chat/completions``."""
    asked: dict[str, Any] = {"model": model.name, "messages": [{"role": "user", "content": "Who wrote Hamlet?"}]}
    spoken = {**asked, "modalities": ["text", "audio"]}
    whole_sound = {"audio": {"voice": model.default_voice, "format": "wav"}}
    stream = {"audio": {"voice": model.default_voice, "format": "pcm16"}, "stream": True}
    return Operation(
        "A reply to a conversation, in text or speech",
        {
            200: Reply(
                "The reply: whole, or with `stream` as server-sent events, each a `chat.completion.chunk` or an "
                "error, and at last `[DONE]`.",
                {JSON: completion_schema(model), SSE: events(chunk_schema(model), ERROR)},
            )
        },
        errors=(400, 404, 408, 413, 415, 422),
        body={JSON: request_schema(model)},
        examples={"text": asked, "speech": {**spoken, **whole_sound}, "streamed speech": {**spoken, **stream}},
        description="`audio` goes with a `modalities` that has it, `stream_options` with `stream`; a stream of speech "
        "is `pcm16`; of `max_tokens` and `max_completion_tokens` one is given.",
    )
