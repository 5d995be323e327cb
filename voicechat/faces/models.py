"""``/v1/models``: the one model that is served, with its voices as an extension."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from voicechat.contract.cascade import Cascade, ModelInfo, Watermark
from voicechat.faces.errors import ApiError, json_response
from voicechat.faces.operation import JSON, TEXT, Operation, Reply, Schema, array, documented, one_of, struct, whole

OWNER = "voicechat"


def model_object(model: ModelInfo) -> dict[str, Any]:
    """OpenAI's model object, and beside it what a client needs to pick a voice."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": OWNER,
        "input_modalities": ["text", "audio", "image"] if model.sees else ["text", "audio"],
        "output_modalities": ["text", "audio"],
        "voices": list(model.voices),
        "default_voice": model.default_voice,
        "watermark": watermark_object(model.watermark),
    }


def watermark_object(watermark: Watermark | None) -> dict[str, Any]:
    """Whether sound is marked, and by whom."""
    if watermark is None:
        return {"enabled": False}
    return {"enabled": True, "payload": watermark.payload, "key_id": watermark.key_id}


def _schema(model: ModelInfo) -> Schema:
    mark = struct(
        {
            "enabled": {"type": "boolean"},
            "payload": {"type": "integer", "minimum": 0, "maximum": 0xFFFF},
            "key_id": TEXT,
        },
        ("enabled",),
    )
    return whole(
        {
            "id": {"const": model.name},
            "object": {"const": "model"},
            "created": {"type": "integer"},
            "owned_by": TEXT,
            "input_modalities": array(one_of(("text", "audio", "image"))),
            "output_modalities": array(one_of(("text", "audio"))),
            "voices": array(one_of(model.voices)),
            "default_voice": one_of(model.voices),
            "watermark": mark,
        }
    )


def _list_operation(model: ModelInfo) -> Operation:
    listed = whole({"object": {"const": "list"}, "data": array(_schema(model))})
    return Operation("The models, of which there is one", {200: Reply("The list.", {JSON: listed})})


def _get_operation(model: ModelInfo) -> Operation:
    return Operation("One model", {200: Reply("The model.", {JSON: _schema(model)})}, errors=(404,))


def no_such_model(name: str) -> ApiError:
    """The error for a model that is not served."""
    return ApiError(404, f"The model '{name}' does not exist.", param="model", code="model_not_found")


def setup(app: web.Application, cascade: Cascade) -> None:
    """Add both routes."""

    @documented(_list_operation)
    async def list_models(_: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [model_object(cascade.model)]})

    @documented(_get_operation)
    async def get_model(request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if name != cascade.model.name:
            raise no_such_model(name)
        return json_response(model_object(cascade.model))

    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/v1/models/{id:.+}", get_model)
