"""Models, health, keys, origins, the page, and errors that no handler makes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import openai
import pytest
from aiohttp import ClientSession, web
from openai import AsyncOpenAI
from openai.types import Model
from yarl import URL

from voicechat.faces.app import FaceSettings
from voicechat.faces.audio_store import AudioStore
from voicechat.faces.metered import Metered

CHAT = {"model": "fake-voice", "messages": [{"role": "user", "content": "Hello"}]}


async def test_models(client: AsyncOpenAI) -> None:
    page = await client.models.list()
    assert [model.id for model in page.data] == ["fake-voice"]
    model = await client.models.retrieve("fake-voice")
    for each in (page.data[0], model):
        Model.model_validate(each.model_dump(warnings="error"), strict=True)
        assert each.object == "model"
        assert each.created == 1_700_000_000
        assert each.model_extra["voices"] == ["ann", "bob"]
        assert each.model_extra["default_voice"] == "ann"


@pytest.mark.parametrize("name", ["nope", "fake-voice/", "a/b", "ä", "%00"])
async def test_unknown_models(url: str, http: ClientSession, name: str) -> None:
    async with http.get(f"{url}/v1/models/{name}") as reply:
        assert reply.status == 404
        assert (await reply.json())["error"]["code"] == "model_not_found"


async def test_unknown_model_through_the_client(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        await client.models.retrieve("nope")
    assert error.value.param == "model"


async def test_health_and_readiness(serve, http: ClientSession, cascade) -> None:
    states = {"thinker": "up", "talker": "starting", "voicebox": "down"}
    url = await serve(stage_states=lambda: states)
    cascade.ready = False
    async with http.get(f"{url}/healthz") as reply:
        assert (reply.status, await reply.json()) == (200, {"status": "ok"})
    async with http.get(f"{url}/readyz") as reply:
        assert reply.status == 503
        assert reply.headers["Retry-After"] == "1"
        body = await reply.json()
    assert body == {"status": "not ready", "waiting_for": ["talker", "voicebox"], "stages": states}
    cascade.ready = True
    states.update(talker="up", voicebox="up")
    async with http.get(f"{url}/readyz") as reply:
        assert reply.status == 200
        assert (await reply.json())["status"] == "ready"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("POST", "/nothing", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_supported"),
        ("DELETE", "/v1/models", 405, "method_not_supported"),
        ("POST", "/healthz", 405, "method_not_supported"),
        ("OPTIONS", "/v1/models", 405, "method_not_supported"),
    ],
)
async def test_routes_that_are_not_there(
    url: str, http: ClientSession, method: str, path: str, status: int, code: str
) -> None:
    async with http.request(method, f"{url}{path}") as reply:
        assert reply.status == status
        error = (await reply.json())["error"]
        assert reply.headers["x-request-id"].startswith("req_")
        assert ("Allow" in reply.headers) == (status == 405)
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == code
    assert path in error["message"]


async def test_every_request_has_its_own_id(url: str, http: ClientSession, client: AsyncOpenAI) -> None:
    ids = set()
    for _ in range(5):
        async with http.get(f"{url}/healthz") as reply:
            ids.add(reply.headers["x-request-id"])
    reply = await client.chat.completions.create(**CHAT)
    ids.add(reply._request_id)
    assert len(ids) == 6
    assert None not in ids


async def test_a_body_that_is_too_large(serve, http: ClientSession) -> None:
    url = await serve(FaceSettings(max_body_bytes=10_000))
    async with http.post(f"{url}/v1/chat/completions", json={"model": "x" * 20_000}) as reply:
        assert reply.status == 413
        assert (await reply.json())["error"]["code"] == "request_too_large"


async def test_a_bug_is_one_clean_error(serve, http: ClientSession, caplog) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise ZeroDivisionError("secret")

    url = await serve(extensions=[lambda app, cascade: app.router.add_get("/v1/broken", broken)])
    async with http.get(f"{url}/v1/broken") as reply:
        assert reply.status == 500
        text = await reply.text()
    assert "secret" not in text
    assert json.loads(text)["error"]["type"] == "server_error"
    assert "ZeroDivisionError" in caplog.text


async def test_extensions_get_everything(serve, cascade) -> None:
    got = []
    await serve(extensions=[lambda app, cascade: got.append((type(app), type(cascade), cascade.model))])
    assert got == [(web.Application, Metered, cascade.model)]


async def test_keys(serve, http: ClientSession, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>page</p>")
    url = await serve(FaceSettings(api_keys=("first", "second", "dritte-größe"), web_dir=tmp_path))
    for key in ("first", "second"):
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            assert (await client.chat.completions.create(**CHAT)).choices
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as error:
            await client.chat.completions.create(**CHAT)
        assert error.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    for headers in ({}, {"Authorization": "Basic Zmlyc3Q="}, {"Authorization": "Bearer "}, {"Authorization": "first"}):
        async with http.get(f"{url}/v1/models", headers=headers) as reply:
            assert reply.status == 401
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert "API key" in (await reply.json())["error"]["message"]
    async with http.get(f"{url}/v1/models", headers={"Authorization": "bearer dritte-größe"}) as reply:
        assert reply.status == 200
    for path in ("/healthz", "/readyz", "/"):
        async with http.get(f"{url}{path}") as reply:
            assert reply.status == 200


async def test_a_key_that_is_no_text(serve) -> None:
    url = await serve(FaceSettings(api_keys=("k",)))
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()


async def test_other_origins(serve, http: ClientSession) -> None:
    url = await serve(FaceSettings(api_keys=("k",), allowed_origins=("https://friend.example",)))
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    friend, stranger = {"Origin": "https://friend.example"}, {"Origin": "https://stranger.example"}
    async with http.options(f"{url}/v1/chat/completions", headers=friend | preflight) as reply:
        assert reply.status == 204
        assert reply.headers["Access-Control-Allow-Origin"] == "https://friend.example"
        assert reply.headers["Access-Control-Allow-Headers"] == "authorization"
    async with http.get(f"{url}/v1/models", headers=friend) as reply:
        assert reply.status == 401
        assert reply.headers["Access-Control-Allow-Origin"] == "https://friend.example"
    async with http.post(
        f"{url}/v1/chat/completions", json={**CHAT, "stream": True}, headers={**friend, "Authorization": "Bearer k"}
    ) as reply:
        assert reply.status == 200
        assert reply.headers["Access-Control-Allow-Origin"] == "https://friend.example"
    async with http.options(f"{url}/v1/chat/completions", headers=stranger | preflight) as reply:
        assert reply.status == 405
        assert "Access-Control-Allow-Origin" not in reply.headers


@pytest.fixture
def web_dir(tmp_path: Path) -> Path:
    root = tmp_path / "web"
    (root / "js").mkdir(parents=True)
    (root / "index.html").write_text("<!doctype html><p>Grüß Gott</p>", encoding="utf-8")
    (root / "app.js").write_text("let x = 1")
    (root / "js" / "worker.mjs").write_text("let y = 1")
    (root / "style.css").write_text("p {}")
    (root / ".secret.js").write_text("no")
    (root / "notes.py").write_text("no")
    (tmp_path / "outside.js").write_text("no")
    (root / "link.js").symlink_to(tmp_path / "outside.js")
    return root


async def test_the_page(serve, http: ClientSession, web_dir: Path) -> None:
    url = await serve(FaceSettings(web_dir=web_dir))
    served = {
        "/": "text/html; charset=utf-8",
        "/index.html": "text/html; charset=utf-8",
        "/app.js": "text/javascript; charset=utf-8",
        "/js/worker.mjs": "text/javascript; charset=utf-8",
        "/style.css": "text/css; charset=utf-8",
    }
    for path, content_type in served.items():
        async with http.get(f"{url}{path}") as reply:
            assert reply.status == 200
            assert reply.headers["Content-Type"] == content_type
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert await reply.read()
            tag = reply.headers["ETag"]
        async with http.get(f"{url}{path}", headers={"If-None-Match": tag}) as reply:
            assert reply.status == 304
        async with http.head(f"{url}{path}") as reply:
            assert reply.status == 200


@pytest.mark.parametrize(
    "path",
    ["/.secret.js", "/notes.py", "/link.js", "/missing.js", "/%2e%2e/outside.js", "/js/..%2f..%2foutside.js", "/js"],
)
async def test_what_is_not_of_the_page(serve, http: ClientSession, web_dir: Path, path: str) -> None:
    base = await serve(FaceSettings(web_dir=web_dir))
    async with http.get(URL(f"{base}{path}", encoded=True)) as reply:
        assert reply.status == 404
        assert (await reply.json())["error"]["code"] == "unknown_url"


def test_the_store_forgets() -> None:
    now = 1_000.0
    store = AudioStore(ttl_s=60, max_replies=3, clock=lambda: now)
    assert store.put("a", "first") == 1_060
    assert store.get("a") == "first"
    now = 1_059.9
    assert store.get("a") == "first"
    now = 1_060.0
    assert store.get("a") is None
    for name in "bcdef":
        store.put(name, name)
    assert len(store) == 3
    assert [store.get(name) for name in "bcdef"] == [None, None, "d", "e", "f"]
    now = 2_000.0
    store.put("g", "g")
    assert len(store) == 1


async def test_expired_audio_through_the_face(serve) -> None:
    url = await serve(FaceSettings(audio_ttl_s=0))
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        reply = await client.chat.completions.create(
            **CHAT, modalities=["text", "audio"], audio={"voice": "ann", "format": "wav"}
        )
        earlier = {"role": "assistant", "audio": {"id": reply.choices[0].message.audio.id}}
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(model="fake-voice", messages=[*CHAT["messages"], earlier])
        assert error.value.param == "messages[1].audio.id"


async def test_the_server_stopping_is_told(serve, cascade, url: str, http: ClientSession) -> None:
    cascade.gate.clear()
    asked = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=CHAT))
    await cascade.asked.wait()
    cascade.responses[0].cancel()
    async with await asked as reply:
        assert reply.status == 503
        assert (await reply.json())["error"]["code"] == "cancelled"
