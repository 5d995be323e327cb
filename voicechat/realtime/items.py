"""Items of a conversation: messages, function calls and their outputs. Parsed strictly, shown in full. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from voicechat.contract.images import ImageUrlError, decoded_image, encoded_image
from voicechat.contract.requests import Role
from voicechat.realtime.errors import ClientError
from voicechat.realtime.fields import Fields, missing, unsupported
from voicechat.realtime.outbox import AudioFormat, EncodedClip, Sound

MAX_ID = 64
MAX_TEXT = 32_000
"""Characters of one text."""

MAX_PARTS = 64
MAX_AUDIO_BYTES = 15 << 20
"""Bytes of one base64 text of sound."""
MAX_IMAGE_BYTES = 10 << 20
"""Bytes of one image."""
MAX_IMAGE_URL = MAX_IMAGE_BYTES // 3 * 4 + 64
DETAILS = ("auto", "low", "high", "original")

PartType = Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]
ItemType = Literal["message", "function_call", "function_call_output"]
Status = Literal["in_progress", "completed", "incomplete"]

_PARTS: dict[str, tuple[PartType, ...]] = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio"),
    "assistant": ("output_text", "output_audio"),
}


@dataclass(slots=True)
class Part:
    """One content part. ``text`` is its text, or the transcript of its sound (None: not known)."""

    type: PartType
    text: str | None = None
    sounds: list[Sound] = field(default_factory=list)
    samples: int = 0
    """Samples of an ``output_audio`` at 24 kHz, as they are heard, that are left of it; ``sounds`` may hold fewer."""
    span: int = 0
    """Samples that ``text`` takes to say: more than ``samples`` if the reply was cut off in the making."""
    image: bytes = b""
    """The file of an ``input_image``; empty once it was forgotten."""
    detail: str = "auto"

    @property
    def is_audio(self) -> bool:
        """True if the part is sound."""
        return self.type in ("input_audio", "output_audio")

    def to_dict(self) -> dict[str, Any]:
        """As the protocol shows it, without the sound or the image itself."""
        if self.type == "input_image":
            return {"type": self.type, "detail": self.detail}
        return {"type": self.type, "transcript" if self.is_audio else "text": self.text}


@dataclass(slots=True)
class Item:
    """One item. ``told`` is what the Thinker is told in place of its text; the fields after it belong to functions.

    ``continues`` names the message of the assistant that this one goes on with, in the middle of which it was stopped.
    """

    id: str
    type: ItemType = "message"
    role: Role = "user"
    status: Status = "completed"
    parts: list[Part] = field(default_factory=list)
    told: str | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str = ""
    continues: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As the protocol shows it."""
        shown: dict[str, Any] = {"id": self.id, "object": "realtime.item", "type": self.type, "status": self.status}
        match self.type:
            case "message":
                return {**shown, "role": self.role, "content": [part.to_dict() for part in self.parts]}
            case "function_call":
                return {**shown, "call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return {**shown, "call_id": self.call_id, "output": self.output}

    def text(self) -> str:
        """All that was said in a message, as far as it is known."""
        return " ".join(part.text for part in self.parts if part.text)

    def size(self) -> int:
        """Bytes of sound and images that are held."""
        held = 0
        for part in self.parts:
            held += len(part.image)
            for sound in part.sounds:
                held += len(sound.data) if isinstance(sound, EncodedClip) else sound.samples.nbytes
        return held


def parse_item(fields: Fields, audio_format: AudioFormat, *, sees: bool) -> Item:
    """An item that a client creates; its ``id`` is empty if the client gave none. Images are taken where the model
    ``sees``. Raises :class:`ClientError`."""
    kind = fields.need_string("type")
    item_id = fields.string("id", MAX_ID) or ""
    match kind:
        case "message":
            fields.only(("id", "object", "type", "status", "role", "content", "phase"))
            return _message(fields, item_id, audio_format, sees)
        case "function_call":
            fields.only(("id", "object", "type", "status", "call_id", "name", "arguments"))
            arguments = fields.need_string("arguments", MAX_TEXT)
            name = fields.need_string("name", MAX_ID)
            call_id = fields.string("call_id", MAX_ID) or ""
            return Item(item_id, "function_call", call_id=call_id, name=name, arguments=_json(fields, arguments))
        case "function_call_output":
            fields.only(("id", "object", "type", "status", "call_id", "output"))
            call_id = fields.need_string("call_id", MAX_ID)
            if fields.get("output") is None:
                raise missing(fields.path("output"))
            return Item(
                item_id, "function_call_output", call_id=call_id, output=fields.string("output", MAX_TEXT) or ""
            )
    known = "'message', 'function_call' and 'function_call_output'"
    raise ClientError(f"Invalid value: '{kind[:64]}'. Supported items are {known}.", param=fields.path("type"))


def decode_audio(fields: Fields, name: str) -> bytes:
    """A field of base64. Raises :class:`ClientError`."""
    text = fields.need_string(name, MAX_AUDIO_BYTES)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        param = fields.path(name)
        raise ClientError(f"Invalid '{param}': it is not base64.", code="invalid_audio", param=param) from None


def _message(fields: Fields, item_id: str, audio_format: AudioFormat, sees: bool) -> Item:
    fields.need("role")
    role = fields.choice("role", tuple(_PARTS)) or "user"
    content = fields.need("content")
    values = fields.array("content")
    if not values or len(values) > MAX_PARTS:
        raise ClientError(f"'{fields.path('content')}' must have 1 to {MAX_PARTS} parts.", param=fields.path("content"))
    parts = [
        _part(Fields(value, f"{fields.path('content')}[{i}]"), role, audio_format, sees)
        for i, value in enumerate(content)
    ]
    return Item(item_id, "message", role, parts=parts)  # type: ignore[arg-type]


def _part(fields: Fields, role: str, audio_format: AudioFormat, sees: bool) -> Part:
    kind = fields.need_string("type")
    if kind == "input_image" and role == "user":
        if sees:
            return _image(fields)
        raise unsupported(fields.path("type"), "the model behind this server does not see images.")
    # the GA protocol's names, and those that clients still send for an earlier reply
    kind = {"text": "output_text", "audio": "output_audio"}.get(kind, kind) if role == "assistant" else kind
    choices = (*_PARTS[role], "input_image") if sees and role == "user" else _PARTS[role]
    if kind not in choices:
        allowed = ", ".join(f"'{choice}'" for choice in choices)
        message = f"Invalid value: '{kind[:64]}'. A message of the {role} can have: {allowed}."
        raise ClientError(message, param=fields.path("type"))
    fields.only(("type", "text", "transcript", "audio", "format"))
    if kind in ("input_text", "output_text"):
        return Part(kind, fields.need_string("text", MAX_TEXT))
    transcript = fields.string("transcript", MAX_TEXT)
    if kind == "output_audio":
        return Part("output_audio", transcript or "")
    data = decode_audio(fields, "audio")
    if not data and transcript is None:
        raise ClientError("The sound is empty.", code="invalid_audio", param=fields.path("audio"))
    if audio_format == "audio/pcm" and len(data) % 2:
        message = "pcm16 has two bytes per sample, but the sound has an odd number of bytes."
        raise ClientError(message, code="invalid_audio", param=fields.path("audio"))
    return Part("input_audio", transcript, [EncodedClip(data, audio_format)])


def _image(fields: Fields) -> Part:
    fields.only(("type", "image_url", "detail"))
    detail = fields.choice("detail", DETAILS) or "auto"
    url = fields.need_string("image_url", MAX_IMAGE_URL)
    try:
        image = decoded_image(encoded_image(url), MAX_IMAGE_BYTES)
    except ImageUrlError as error:
        param = fields.path("image_url")
        raise ClientError(f"Invalid '{param}': {error}", code=error.code, param=param) from None
    return Part("input_image", image=image, detail=detail)


def _json(fields: Fields, arguments: str) -> str:
    try:
        json.loads(arguments or "{}")
    except ValueError:
        param = fields.path("arguments")
        raise ClientError(f"Invalid '{param}': it is not JSON.", param=param) from None
    return arguments
