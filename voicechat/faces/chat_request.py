"""The body of ``POST /v1/chat/completions``, checked field by field. Pure: sound is not decoded here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.requests import Sampling
from voicechat.faces.chat_messages import DraftMessage, parse_messages
from voicechat.faces.chat_tools import ChatTools, parse_tools
from voicechat.faces.errors import ApiError
from voicechat.faces.fields import Fields, bad_field, unsupported_value, wrong_type
from voicechat.faces.models import no_such_model
from voicechat.faces.voices import read_voice
from voicechat.media.encode import FORMATS

MAX_STOP = 4
MAX_STOP_LENGTH = 256
SMALLEST_TOP_P = 1e-6
"""Stands for ``top_p`` 0, which OpenAI allows and engines don't: only the likeliest token is left either way."""

SERVED = {
    "audio",
    "include_details",
    "latency_first",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "seed",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
    "user",
}
"""Fields that are read."""

IGNORABLE: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_options": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that no model here can honour, and the values of each that ask for nothing (``null`` always does)."""

HINTS = {"prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
"""Fields that are only hints to OpenAI's own service: they are checked and change nothing."""

AudioLookup = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """How the reply is to sound, and in which of :data:`voicechat.media.encode.FORMATS` it is sent."""

    voice: str
    format: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request. ``audio`` is ``None`` for a reply in text only; ``details`` asks for the extension."""

    messages: tuple[DraftMessage, ...]
    audio: AudioOptions | None
    stream: bool
    include_usage: bool
    latency_first: bool
    details: bool
    sampling: Sampling
    metadata: dict[str, str] | None
    tools: ChatTools


def parse_chat(body: object, model: ModelInfo, lookup: AudioLookup, image_hosts: Collection[str] = ()) -> ChatRequest:
    """Check a JSON body. ``lookup`` gives the transcript of an earlier reply's audio id; images may be on
    ``image_hosts``.

    Raises :class:`ApiError` that names the first field that is wrong.
    """
    fields = Fields(body)
    _check_names(fields)
    name = fields.need_string("model")
    if name != model.name:
        raise no_such_model(name)
    stream = fields.boolean("stream") or False
    latency_first = fields.boolean("latency_first")
    fields.boolean("store")
    fields.string("user")
    for hint in HINTS:
        fields.string(hint, max_length=512)
    return ChatRequest(
        audio=_audio(fields, model, stream),
        messages=parse_messages(fields, lookup, model, image_hosts),
        stream=stream,
        include_usage=_include_usage(fields, stream),
        latency_first=stream if latency_first is None else latency_first,
        details=fields.boolean("include_details") or False,
        sampling=_sampling(fields, model),
        metadata=_metadata(fields),
        tools=parse_tools(fields),
    )


def _check_names(fields: Fields) -> None:
    for name in fields.names():
        value = fields.get(name)
        if name in SERVED or name in HINTS:
            continue
        if name not in IGNORABLE:
            shown = name[:64]
            message = f"Unrecognized request argument supplied: {shown}"
            raise ApiError(400, message, param=shown, code="unknown_parameter")
        if value is None or any(value == nothing and _same_kind(value, nothing) for nothing in IGNORABLE[name]):
            continue
        if IGNORABLE[name] and isinstance(value, int | float | str):
            raise unsupported_value(name, str(value)[:64])
        message = f"Unsupported parameter: '{name}' is not supported with this model."
        raise bad_field(name, message, "unsupported_parameter")


def _same_kind(value: object, other: object) -> bool:
    """JSON tells booleans from numbers, Python's ``==`` does not."""
    return isinstance(value, bool) == isinstance(other, bool)


def _audio(fields: Fields, model: ModelInfo, stream: bool) -> AudioOptions | None:
    modalities = fields.array("modalities")
    if modalities is not None:
        for index, modality in enumerate(modalities):
            param = f"modalities[{index}]"
            if not isinstance(modality, str):
                raise wrong_type(param, "one of 'text' or 'audio'", modality)
            if modality not in ("text", "audio"):
                raise bad_field(param, f"Invalid value: '{modality[:64]}'. Supported values are: 'text', 'audio'.")
        if not modalities or len(set(modalities)) < len(modalities):
            message = "Invalid modalities. Supported combinations are: ['text'], ['audio'] and ['text', 'audio']."
            raise bad_field("modalities", message)
    if "audio" not in (modalities or ()):
        if fields.get("audio") is not None:
            raise bad_field("audio", "'audio' is only allowed when 'modalities' includes 'audio'.")
        return None
    audio = fields.need_object("audio")
    audio.only(("voice", "format"))
    return AudioOptions(voice=read_voice(audio, model), format=_format(audio, stream))


def _format(audio: Fields, stream: bool) -> str:
    name = audio.need_choice("format", tuple(FORMATS))
    if stream and name != "pcm16":
        message = f"Unsupported value: 'audio.format' does not support '{name}' when stream=true. Use 'pcm16' instead."
        raise bad_field("audio.format", message, "unsupported_value")
    return name


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise bad_field("stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    options.only(("include_usage", "include_obfuscation"))
    if options.boolean("include_obfuscation"):
        raise unsupported_value("stream_options.include_obfuscation", "true")
    return options.boolean("include_usage") or False


def _sampling(fields: Fields, model: ModelInfo) -> Sampling:
    old = fields.integer("max_tokens", 1, model.context_tokens)
    new = fields.integer("max_completion_tokens", 1, model.context_tokens)
    if old is not None and new is not None:
        message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise bad_field("max_tokens", message)
    top_p = fields.number("top_p", 0, 1)
    return Sampling(
        max_tokens=old if new is None else new,
        temperature=fields.number("temperature", 0, 2),
        top_p=None if top_p is None else max(top_p, SMALLEST_TOP_P),
        seed=fields.integer("seed", -(2**63), 2**63 - 1),
        stop=_stop(fields),
    )


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        stops, paths = [value], ["stop"]
    elif isinstance(value, list):
        stops, paths = value, [f"stop[{index}]" for index in range(len(value))]
    else:
        raise wrong_type("stop", "a string or an array of strings", value)
    if len(stops) > MAX_STOP:
        message = (
            f"Invalid 'stop': array too long. Expected an array with maximum length {MAX_STOP}, "
            f"but got an array with length {len(stops)} instead."
        )
        raise bad_field("stop", message, "array_above_max_length")
    for stop, param in zip(stops, paths, strict=True):
        if not isinstance(stop, str):
            raise wrong_type(param, "a string", stop)
        if not 1 <= len(stop) <= MAX_STOP_LENGTH:
            raise bad_field(param, f"Invalid '{param}': expected 1 to {MAX_STOP_LENGTH} characters, got {len(stop)}.")
    return tuple(stops)


def _metadata(fields: Fields) -> dict[str, str] | None:
    metadata = fields.object("metadata")
    if metadata is None:
        return None
    keys = metadata.names()
    if len(keys) > 16:
        raise bad_field("metadata", f"Invalid 'metadata': at most 16 pairs are allowed, got {len(keys)}.")
    checked: dict[str, str] = {}
    for key in keys:
        if len(key) > 64:
            raise bad_field("metadata", "Invalid 'metadata': keys may have at most 64 characters.")
        value = metadata.string(key, max_length=512)
        if value is None:
            raise wrong_type(f"metadata.{key}", "a string", value)
        checked[key] = value
    return checked
