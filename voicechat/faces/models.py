"""``/v1/models``: the one model that is served, with its voices as an extension."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from voicechat.contract.cascade import Cascade, ModelInfo, Watermark
from voicechat.faces.errors import ApiError, json_response

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


def no_such_model(name: str) -> ApiError:
    """The error for a model that is not served."""
    return ApiError(404, f"The model '{name}' does not exist.", param="model", code="model_not_found")


def setup(app: web.Application, cascade: Cascade) -> None:
    """Add both routes."""

    async def list_models(_: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [model_object(cascade.model)]})

    async def get_model(request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if name != cascade.model.name:
            raise no_such_model(name)
        return json_response(model_object(cascade.model))

    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/v1/models/{id:.+}", get_model)
