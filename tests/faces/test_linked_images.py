"""Images that requests name by URL: from allowed hosts only, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession, web

from tests.cascade_double import DoubleCascade
from voicechat.contract.requests import ImagePart, TextPart
from voicechat.faces.app import FaceSettings, create_app

PICTURE = b"\x89PNG\r\n\x1a\n and so on"


async def serve(app: web.Application) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


@pytest_asyncio.fixture
async def gallery() -> AsyncIterator[tuple[int, list[str]]]:
    """The port of a server of pictures, and what was asked of it."""
    asked: list[str] = []

    async def get(request: web.Request) -> web.Response:
        asked.append(request.path)
        match request.path:
            case "/cat.png":
                return web.Response(body=PICTURE, content_type="image/png")
            case "/large.png":
                return web.Response(body=bytes(200_000), content_type="image/png")
            case "/page.html":
                return web.Response(text="<p>no picture</p>", content_type="text/html")
            case "/moved.png":
                raise web.HTTPFound("/cat.png")
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_get("/{any:.*}", get)
    runner, port = await serve(app)
    yield port, asked
    await runner.cleanup()


async def ask(port: int, path: str, *hosts: str, host: str = "127.0.0.1") -> tuple[int, dict[str, Any], DoubleCascade]:
    """Status and body of a question about the picture."""
    cascade = DoubleCascade(sees=True)
    app = create_app(cascade, FaceSettings(image_hosts=hosts, max_audio_bytes=100_000))
    runner, own = await serve(app)
    content = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"http://{host}:{port}{path}"}},
    ]
    body = {"model": "double", "messages": [{"role": "user", "content": content}]}
    async with ClientSession() as client:
        async with client.post(f"http://127.0.0.1:{own}/v1/chat/completions", json=body) as response:
            status, told = response.status, await response.json()
    await runner.cleanup()
    return status, told, cascade


async def test_from_an_allowed_host(gallery: tuple[int, list[str]]) -> None:
    status, _, cascade = await ask(gallery[0], "/cat.png", "127.0.0.1")
    assert status == 200
    (message,) = cascade.requests[0].messages
    assert message.parts == (TextPart("What is it?"), ImagePart(PICTURE))


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/large.png", "image_too_large", "larger than 100000 bytes"),
        ("/page.html", "invalid_image_format", "not text/html"),
        ("/moved.png", "invalid_image_url", "answered 302"),
        ("/none.png", "invalid_image_url", "answered 404"),
    ],
)
async def test_what_is_no_picture(gallery: tuple[int, list[str]], path: str, code: str, words: str) -> None:
    status, told, cascade = await ask(gallery[0], path, "127.0.0.1")
    assert (status, told["error"]["code"]) == (400, code)
    assert told["error"]["param"] == "messages[0].content[1].image_url.url"
    assert words in told["error"]["message"]
    assert gallery[1] == [path], "nothing else was asked for"
    assert not cascade.requests


@pytest.mark.parametrize("hosts", [(), ("pictures.example",), ("127.0.0.1.example",)])
async def test_other_hosts_are_not_asked(gallery: tuple[int, list[str]], hosts: tuple[str, ...]) -> None:
    status, told, _ = await ask(gallery[0], "/cat.png", *hosts)
    assert (status, told["error"]["code"]) == (400, "invalid_image_url")
    assert gallery[1] == []


async def test_a_name_before_an_at_is_no_host(gallery: tuple[int, list[str]]) -> None:
    status, told, _ = await ask(gallery[0], "/cat.png", "allowed.example", host="allowed.example@127.0.0.1")
    assert (status, told["error"]["code"]) == (400, "invalid_image_url")
    assert gallery[1] == []


async def test_a_host_that_can_not_be_reached() -> None:
    status, told, _ = await ask(9, "/cat.png", "127.0.0.1")
    assert (status, told["error"]["code"]) == (400, "invalid_image_url")
    assert "could not be fetched" in told["error"]["message"]
