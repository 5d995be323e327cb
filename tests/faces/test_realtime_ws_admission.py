"""Who may open a WebSocket, and when: keys, origins, places, and what is refused before the handshake."""

from __future__ import annotations

import aiohttp
import pytest

from tests.cascade_double import DoubleCascade
from voicechat.faces.admission import ADMISSION


async def test_beta_is_refused_clearly(serve_ws):
    server = await serve_ws()
    for options in (
        {"headers": {"OpenAI-Beta": "realtime=v1"}},
        {"protocols": ("realtime", "openai-beta.realtime-v1")},
    ):
        async with server.raw(**options) as raw:
            assert await raw.closed() == 1008
            assert raw.events[0]["error"]["code"] == "beta_api_shape_disabled"


async def test_keys(serve_ws):
    server = await serve_ws(api_keys=("sk-right",))
    for protocols, status in (((), 401), (("realtime", "openai-insecure-api-key.wrong"), 401)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with server.raw(protocols=protocols):
                pass
        assert refused.value.status == status
    async with server.raw(protocols=("realtime", "openai-insecure-api-key.sk-right")) as raw:
        assert raw.ws.protocol == "realtime"
        await raw.until("session.created")
    async with server.client("sk-right") as client, client.realtime.connect(model="gpt-realtime") as connection:
        assert (await connection.recv()).type == "session.created"


async def test_no_websocket(serve_ws):
    server = await serve_ws()
    async with server.http.get(f"{server.base}/v1/realtime?model=double") as response:
        assert response.status == 426
        assert (await response.json())["error"]["code"] == "upgrade_required"


async def test_refusals_before_the_handshake(serve_ws):
    not_ready = await serve_ws(DoubleCascade(ready=False))
    full = await serve_ws(max_realtime_sessions=1)
    async with full.raw():
        for server, path, status in (
            (not_ready, "/v1/realtime?model=double", 503),
            (full, "/v1/realtime?model=double", 429),
            (full, "/v1/realtime?call_id=rtc_1", 404),
            (full, "/v1/realtime?intent=dreaming", 400),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with server.raw(path):
                    pass
            assert refused.value.status == status
    await full.until_empty()
    async with full.raw() as raw:
        await raw.until("session.created")


async def test_pages_of_other_sites(serve_ws):
    server = await serve_ws(allowed_origins=("https://friend.example",))
    for origin in ("https://foe.example", "null", "http://localhost:1"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with server.raw(origin=origin):
                pass
        assert refused.value.status == 403
    for origin in ("https://friend.example", server.base):
        async with server.raw(origin=origin) as raw:
            await raw.until("session.created")
    keyed = await serve_ws(api_keys=("sk-right",))
    async with keyed.raw(origin="https://foe.example", headers={"Authorization": "Bearer sk-right"}) as raw:
        await raw.until("session.created")


async def test_calls_over_webrtc_take_places_too(serve_ws):
    server = await serve_ws(max_realtime_sessions=1)
    calls = [0]
    server.app[ADMISSION].add(lambda: calls[0])
    calls[0] = 1
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with server.raw():
            pass
    assert refused.value.status == 429
    calls[0] = 0
    async with server.raw() as raw:
        await raw.until("session.created")
