"""The ``messages`` of a chat request: checked first, then sounds and images decoded (:func:`decode_messages`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.images import ImageUrlError, base64_bytes, decoded_image, encoded_image
from voicechat.contract.requests import AudioPart, CallPart, ImagePart, Message, ResultPart, Role, TextPart
from voicechat.faces.errors import ApiError
from voicechat.faces.fields import Fields, bad_field, quoted, wrong_type
from voicechat.media.decode import AudioError, decode_audio

INPUT_FORMATS = ("wav", "mp3")
MAX_MESSAGES = 2048

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PARTS = {
    "system": ("text",),
    "user": ("text", "input_audio"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
_SEEING = (*_PARTS["user"], "image_url")
"""Parts of a user's message, where the model can see."""
_KNOWN_PARTS = ("text", "input_audio", "image_url", "file", "refusal", "video_url")


@dataclass(frozen=True, slots=True, repr=False)
class EncodedAudio:
    """An ``input_audio`` part as it was sent; ``param`` is the path of its ``data``."""

    data: str
    format: str
    param: str


@dataclass(frozen=True, slots=True)
class LinkedImage:
    """An ``image_url`` part that lies on an allowed host; ``param`` is the path of its ``url``."""

    url: str
    param: str


@dataclass(frozen=True, slots=True, repr=False)
class EncodedImage:
    """The base64 of an ``image_url`` part's data URL; ``param`` is the path of its ``url``."""

    data: str
    param: str


DraftPart = TextPart | EncodedAudio | EncodedImage | LinkedImage | ImagePart | CallPart | ResultPart
Hosts = Collection[str] | None
"""From where images may be fetched; None: the model does not see."""


@dataclass(frozen=True, slots=True)
class DraftMessage:
    """A message whose sounds and images are still encoded."""

    role: Role
    parts: tuple[DraftPart, ...]


def parts_of(role: str, *, sees: bool) -> tuple[str, ...]:
    """Types of the parts that a message of ``role`` may have."""
    return _SEEING if sees and role == "user" else _PARTS[role]


def parse_messages(
    fields: Fields, lookup: Callable[[str], str | None], model: ModelInfo, image_hosts: Collection[str] = ()
) -> tuple[DraftMessage, ...]:
    """Check ``messages``. ``lookup`` gives the transcript of an earlier spoken reply by its id; images may be among
    them where the model sees, and links to images on ``image_hosts``."""
    hosts = image_hosts if model.sees else None
    fields.require("messages")
    messages = fields.array("messages") or []
    if not messages:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1."
        raise bad_field("messages", message, "empty_array")
    if len(messages) > MAX_MESSAGES:
        message = f"Invalid 'messages': array too long. Expected an array with maximum length {MAX_MESSAGES}."
        raise bad_field("messages", message, "array_above_max_length")
    drafts = tuple(_message(Fields(value, f"messages[{index}]"), lookup, hosts) for index, value in enumerate(messages))
    parts = [part for draft in drafts for part in draft.parts]
    images = sum(isinstance(part, EncodedImage | LinkedImage) for part in parts)
    if model.most_images is not None and images > model.most_images:
        message = f"Invalid 'messages': {images} images. At most {model.most_images} are taken."
        raise bad_field("messages", message, "too_many_images")
    sounds = sum(isinstance(part, EncodedAudio) for part in parts)
    if model.hears and model.most_sounds is not None and sounds > model.most_sounds:
        message = f"Invalid 'messages': {sounds} sounds. At most {model.most_sounds} are taken."
        raise bad_field("messages", message, "too_many_sounds")
    return drafts


def decode_messages(drafts: Sequence[DraftMessage], *, max_bytes: int, max_seconds: float) -> tuple[Message, ...]:
    """Decode the sounds and images of all messages. CPU-bound: for a worker thread.

    ``max_bytes`` and ``max_seconds`` hold for each part. Raises :class:`ApiError` naming the part that is wrong.
    """
    return tuple(
        Message(
            draft.role,
            tuple(_decoded(part, max_bytes, max_seconds) for part in draft.parts),
        )
        for draft in drafts
    )


def has_media(drafts: Sequence[DraftMessage]) -> bool:
    """True if :func:`decode_messages` has work to do."""
    return any(isinstance(part, EncodedAudio | EncodedImage) for draft in drafts for part in draft.parts)


def _decoded(
    part: DraftPart, max_bytes: int, max_seconds: float
) -> TextPart | AudioPart | ImagePart | CallPart | ResultPart:
    if isinstance(part, EncodedAudio):
        return AudioPart(_decode(part, max_bytes, max_seconds))
    assert not isinstance(part, LinkedImage), "links are followed first"
    return ImagePart(_image_bytes(part, max_bytes)) if isinstance(part, EncodedImage) else part


def _image_bytes(part: EncodedImage, max_bytes: int) -> bytes:
    try:
        return decoded_image(part.data, max_bytes)
    except ImageUrlError as error:
        raise bad_field(part.param, f"Invalid '{part.param}': {error}", error.code) from None


def _decode(part: EncodedAudio, max_bytes: int, max_seconds: float) -> Any:
    if len(part.data) > (max_bytes + 2) // 3 * 4:
        raise bad_field(part.param, f"Invalid '{part.param}': the audio is larger than {max_bytes} bytes.")
    try:
        data = base64_bytes(part.data)
    except ValueError:
        message = f"Invalid '{part.param}': expected base64-encoded audio, without a prefix and without line breaks."
        raise bad_field(part.param, message) from None
    try:
        return decode_audio(data, part.format, max_seconds=max_seconds, max_bytes=max_bytes)
    except AudioError as error:
        raise bad_field(part.param, f"Invalid '{part.param}': {error}.", "invalid_audio") from None


def _message(fields: Fields, lookup: Callable[[str], str | None], hosts: Hosts) -> DraftMessage:
    given = fields.need_choice("role", (*_ROLES, "tool", "function"))
    if given == "function":
        message = f"Unsupported value: '{fields.path('role')}' does not support 'function'. Use 'tool' instead."
        raise bad_field(fields.path("role"), message, "unsupported_value")
    if given == "tool":
        return _result(fields)
    role = _ROLES[given]
    fields.string("name", max_length=64)
    if role != "assistant":
        fields.only(("role", "content", "name"))
        fields.require("content")
        return DraftMessage(role, _content(fields, role, hosts))
    return _assistant(fields, lookup)


def _assistant(fields: Fields, lookup: Callable[[str], str | None]) -> DraftMessage:
    """An earlier reply, perhaps just as this server sent it: its fields that say nothing are let through."""
    fields.only(("role", "content", "name", "refusal", "audio", "tool_calls", "function_call", "annotations"))
    if fields.get("function_call"):
        param = fields.path("function_call")
        message = f"Unsupported parameter: '{param}' is not supported. Use 'tool_calls' instead."
        raise bad_field(param, message, "unsupported_parameter")
    parts: list[DraftPart] = []
    if fields.get("content") is not None:
        parts.extend(_content(fields, "assistant"))
    refusal = fields.string("refusal")
    if refusal is not None:
        parts.append(TextPart(refusal))
    audio = fields.object("audio")
    if audio is not None:
        parts.append(TextPart(_earlier_reply(audio, lookup)))
    parts.extend(_calls(fields))
    if not parts:
        param = fields.path("content")
        message = (
            f"Missing required parameter: '{param}': an assistant message needs 'content', 'audio' or 'tool_calls'."
        )
        raise bad_field(param, message, "missing_required_parameter")
    return DraftMessage("assistant", tuple(parts))


def _result(fields: Fields) -> DraftMessage:
    """What came of an earlier call."""
    fields.only(("role", "content", "tool_call_id"))
    fields.require("content")
    parts = _content(fields, "tool")
    output = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    return DraftMessage("user", (ResultPart(fields.need_string("tool_call_id", max_length=128), output),))


def _calls(fields: Fields) -> list[CallPart]:
    """Earlier calls of an assistant message."""
    calls = []
    for index, value in enumerate(fields.array("tool_calls") or []):
        call = Fields(value, f"{fields.path('tool_calls')}[{index}]")
        call.only(("id", "type", "function"))
        call_id = call.need_string("id", max_length=128)
        call.need_choice("type", ("function",))
        function = call.need_object("function")
        function.only(("name", "arguments"))
        calls.append(CallPart(call_id, function.need_string("name", max_length=64), function.need_string("arguments")))
    return calls


def _earlier_reply(audio: Fields, lookup: Callable[[str], str | None]) -> str:
    audio.only(("id", "data", "transcript", "expires_at"))
    audio_id = audio.need_string("id", max_length=128)
    transcript = lookup(audio_id)
    if transcript is None:
        param = audio.path("id")
        raise bad_field(param, f"Audio '{audio_id}' was not found, or has expired.", "audio_not_found")
    return transcript


def _content(fields: Fields, role: str, hosts: Hosts = None) -> tuple[DraftPart, ...]:
    content, param = fields.get("content"), fields.path("content")
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list):
        raise wrong_type(param, "one of a string or array of objects", content)
    if not content:
        raise bad_field(
            param, f"Invalid '{param}': empty array. Expected an array with minimum length 1.", "empty_array"
        )
    kinds = parts_of(role, sees=hosts is not None)
    return tuple(
        _part(Fields(part, f"{param}[{index}]"), role, kinds, hosts or ()) for index, part in enumerate(content)
    )


def _part(fields: Fields, role: str, kinds: Sequence[str], hosts: Collection[str]) -> DraftPart:
    kind = fields.need_choice("type", _KNOWN_PARTS)
    if kind not in kinds:
        raise _unsupported_part(fields, kind, role, kinds)
    fields.only(("type", kind, "prompt_cache_breakpoint"))
    if kind == "image_url":
        return _image(fields.need_object("image_url"), hosts)
    if kind != "input_audio":
        return TextPart(fields.need_string(kind))
    audio = fields.need_object("input_audio")
    audio.only(("data", "format"))
    data = audio.need_string("data")
    return EncodedAudio(data, audio.need_choice("format", INPUT_FORMATS), audio.path("data"))


def _image(image: Fields, hosts: Collection[str]) -> EncodedImage | LinkedImage:
    """A data URL (RFC 2397), or a link to one of ``hosts``: a server that fetches whatever callers name is a proxy to
    its own network."""
    image.only(("url", "detail"))
    param, url = image.path("url"), image.need_string("url")
    image.string("detail")
    if url.lower().startswith(("http://", "https://")) and hosts:
        return _linked(url, param, hosts)
    try:
        return EncodedImage(encoded_image(url), param)
    except ImageUrlError as error:
        raise bad_field(param, f"Invalid '{param}': {error}", error.code) from None


def _linked(url: str, param: str, hosts: Collection[str]) -> LinkedImage:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if host not in hosts:
        message = f"Invalid '{param}': images are fetched from {quoted(sorted(hosts))} only."
        raise bad_field(param, message, "invalid_image_url")
    return LinkedImage(url, param)


def _unsupported_part(fields: Fields, kind: str, role: str, kinds: Sequence[str]) -> ApiError:
    param = fields.path(kind if fields.get(kind) is not None else "type")
    if kind == "video_url" and "image_url" in kinds:
        message = "Invalid content type: 'video_url' is not supported, because this model sees images only."
    elif kind in ("image_url", "video_url") and role == "user":
        message = f"Invalid content type: '{kind}' is not supported, because this model can't see."
    elif kind == "file":
        message = "Invalid content type: 'file' is not supported by this model."
    else:
        allowed = quoted(kinds)
        message = f"Invalid content type: '{kind}' is not allowed in {role} messages. Supported values are: {allowed}."
    return bad_field(param, message, "unsupported_content_type")
