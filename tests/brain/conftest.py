"""A chat completions endpoint on loopback that does what a test says, right or wrong; and stages that ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.brain.talk import PATIENCE, Start, Talk, options

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chunk(reason: str | None = None, **delta: Any) -> bytes:
    """One event of a reply."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = event({
    "choices": [],
    "usage": {"prompt_tokens": 12, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}},
})  # fmt: skip
HELLO = (chunk(role="assistant", content=""), chunk(content="Hello"), chunk(content=" there."), chunk("stop"))


@dataclass
class Brain:
    """The endpoint. ``answer`` makes the response to a chat completion; ``bodies`` are those that were asked with."""

    answer: Answer
    url: str = ""
    models: list[str] | None = field(default_factory=lambda: ["m", "other"])
    status: int = 200
    """Of everything, if it is not 200."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a caller has closed its connection in the middle of a reply."""

    async def list_models(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        if self.models is None:
            raise web.HTTPNotFound
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        self.connections.add(request.transport)
        try:
            return await self.answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up.set()
            raise


def streamed(*parts: bytes | float, content_type: str = "text/event-stream", broken: bool = False) -> Answer:
    """Sends the parts, with a pause for each number; then ends the reply, or breaks the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        for part in parts:
            if isinstance(part, bytes):
                await response.write(part)
            else:
                await asyncio.sleep(part)
        if broken:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def refused(status: int, body: object = None, **headers: str) -> Answer:
    """Answers with a status and a JSON body."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


@pytest.fixture
async def brain() -> AsyncIterator[Brain]:
    """An endpoint that says "Hello there." until told otherwise."""
    made = Brain(streamed(*HELLO, USAGE, DONE))
    app = web.Application()
    app.router.add_get("/v1/models", made.list_models)
    app.router.add_post("/v1/chat/completions", made.complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    await runner.cleanup()


@pytest.fixture
async def start(brain: Brain) -> AsyncIterator[Start]:
    """``await start(**options)`` gives a started stage, which is stopped at the end."""
    talks: list[Talk] = []

    async def begin(**fields: Any) -> Talk:
        talk = Talk(options(brain.url, **fields))
        talks.append(talk)
        await asyncio.wait_for(talk.stage.start(), PATIENCE)
        return talk

    yield begin
    for talk in talks:
        await talk.stage.stop()
