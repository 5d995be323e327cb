"""``/v1/voices``: who can speak, for clients that offer the choice; and reading the choice from a request.

``GET /v1/audio/voices`` answers the same, where other servers of this kind have it. The list is under ``data``, as
OpenAI's lists are, and under ``voices`` too, where such clients look for it.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from voicechat.contract.cascade import Cascade, ModelInfo
from voicechat.faces.errors import ApiError, json_response
from voicechat.faces.fields import Fields, bad_field, quoted, wrong_type
from voicechat.faces.operation import JSON, TEXT, Operation, Reply, Schema, array, documented, one_of, struct
from voicechat.realtime.settings import PRESET_VOICES, served_voice


def voice_object(model: ModelInfo, voice: str) -> dict[str, Any]:
    """One voice. Of description, gender and language only what is known is told."""
    about = model.about.get(voice, {})
    return {
        "id": voice,
        "object": "voice",
        "created_at": model.created,
        "model": model.name,
        "default": voice == model.default_voice,
        **{"name": voice.replace("-", " ").replace("_", " ").title(), **about},
    }


def voice_list(model: ModelInfo) -> dict[str, Any]:
    """All voices, the default one first."""
    voices = sorted(model.voices, key=lambda voice: voice != model.default_voice)
    listed = [voice_object(model, voice) for voice in voices]
    return {
        "object": "list",
        "data": listed,
        "voices": listed,
        "first_id": voices[0],
        "last_id": voices[-1],
        "has_more": False,
    }


def read_voice(fields: Fields, model: ModelInfo) -> str:
    """The voice that the field ``voice``, a name or an object with ``id``, means. Raises :class:`ApiError`."""
    name, param = fields.require("voice"), fields.path("voice")
    if isinstance(name, dict):
        custom = fields.need_object("voice")
        custom.only(("id",))
        name, param = custom.require("id"), custom.path("id")
    if not isinstance(name, str):
        raise wrong_type(param, "a string", name)
    voice = served_voice(name, model)
    if voice is None:
        raise bad_field(param, f"Invalid value: '{name[:64]}'. Supported values are: {quoted(model.voices)}.")
    return voice


def voice_schema(model: ModelInfo) -> Schema:
    """What :func:`read_voice` reads."""
    name = one_of(tuple(dict.fromkeys((*model.voices, *PRESET_VOICES))))
    return {"anyOf": [name, struct({"id": name}, ("id",))]}


def _object_schema(model: ModelInfo) -> Schema:
    always = {
        "id": one_of(model.voices),
        "object": {"const": "voice"},
        "created_at": {"type": "integer"},
        "model": {"const": model.name},
        "default": {"type": "boolean"},
        "name": TEXT,
    }
    return struct({**always, "description": TEXT, "gender": TEXT, "language": TEXT}, tuple(always))


def _list_operation(model: ModelInfo) -> Operation:
    fields = {
        "object": {"const": "list"},
        "data": array(_object_schema(model)),
        "voices": array(_object_schema(model)),
        "first_id": TEXT,
        "last_id": TEXT,
        "has_more": {"const": False},
    }
    return Operation("All voices", {200: Reply("The list.", {JSON: struct(fields, tuple(fields))})})


def _get_operation(model: ModelInfo) -> Operation:
    return Operation("One voice", {200: Reply("The voice.", {JSON: _object_schema(model)})}, errors=(404,))


def no_such_voice(name: str) -> ApiError:
    """The error for a voice that is not served."""
    return ApiError(404, f"The voice '{name}' does not exist.", param="voice", code="voice_not_found")


def setup(app: web.Application, cascade: Cascade) -> None:
    """Add the routes."""

    @documented(_list_operation)
    async def list_voices(_: web.Request) -> web.Response:
        return json_response(voice_list(cascade.model))

    @documented(_get_operation)
    async def get_voice(request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if name not in cascade.model.voices:
            raise no_such_voice(name)
        return json_response(voice_object(cascade.model, name))

    for path in ("/v1/voices", "/v1/audio/voices"):
        app.router.add_get(path, list_voices)
        app.router.add_get(f"{path}/{{id:.+}}", get_voice)
