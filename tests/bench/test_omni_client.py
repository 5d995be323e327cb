"""The client of vLLM-Omni's answers, against events of its form: text and sound apart by ``modality``."""

from __future__ import annotations

import base64
import json
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from voicechat.bench.chat_client import ClientError
from voicechat.bench.omni_client import OmniClient


def events() -> list[dict[str, Any]]:
    """Two pieces of text and two of sound, as vLLM-Omni 0.26 sends them."""
    sound = [base64.b64encode(np.full(count, 7, "<i2").tobytes()).decode() for count in (480, 24_000)]
    said = [("text", "Good "), ("audio", sound[0]), ("text", "day."), ("audio", sound[1])]
    return [{"choices": [{"index": 0, "delta": {"content": part}}], "modality": kind} for kind, part in said]


async def test_text_and_sound_are_told_apart_and_lengths_are_forced() -> None:
    asked: list[dict[str, Any]] = []

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "omni"}]})

    async def chat(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in (*map(json.dumps, events()), "[DONE]"):
            await response.write(f"data: {event}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        reply = await OmniClient(http, str(server.make_url(""))).ask("Hello?", max_tokens=24)
    assert reply.text == "Good day."
    assert reply.audio_s == pytest.approx(1.02)
    assert [seconds for _, seconds in reply.chunks] == pytest.approx([0.02, 1.0])
    assert (asked[0]["model"], asked[0]["max_tokens"], asked[0]["min_tokens"], asked[0]["ignore_eos"]) == (
        "omni", 24, 24, True,
    )  # fmt: skip
    assert "voice" not in asked[0]["audio"]


async def test_a_server_without_a_model() -> None:
    async def nothing(_: web.Request) -> web.Response:
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/v1/models", nothing)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        with pytest.raises(ClientError, match="does not list a model"):
            await OmniClient(http, str(server.make_url(""))).ask("Hello?")
