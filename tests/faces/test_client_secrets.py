"""Secrets for browsers: each opens sessions as it was made for, for a while, and nothing else."""

from __future__ import annotations

import time

import aiohttp
import pytest

from voicechat.faces.client_secrets import SECRETS


async def test_client_secrets(serve_ws):
    server = await serve_ws(api_keys=("sk-right",))
    async with server.client("sk-right") as client:
        secret = await client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={"type": "realtime", "instructions": "Rhyme.", "audio": {"output": {"voice": "ben"}}},
        )
    assert secret.value.startswith("ek_")
    assert secret.expires_at - time.time() == pytest.approx(60, abs=5)
    assert secret.session.instructions == "Rhyme."
    async with server.raw("/v1/realtime", protocols=("realtime", f"openai-insecure-api-key.{secret.value}")) as raw:
        created = await raw.until("session.created")
        assert created["session"]["instructions"] == "Rhyme."
        assert created["session"]["audio"]["output"]["voice"] == "ben"
    headers = {"Authorization": f"Bearer {secret.value}"}
    async with server.http.post(f"{server.base}/v1/realtime/client_secrets", headers=headers) as response:
        assert response.status == 401, "a secret makes no secrets"
    async with server.http.get(f"{server.base}/v1/models", headers=headers) as response:
        assert response.status == 401
    server.app[SECRETS]._clock = lambda: time.time() + 61
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with server.raw(headers=headers):
            pass
    assert refused.value.status == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"anchor": "created_at", "seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 60}}, "expires_after.anchor"),
        ({"session": {"type": "dreaming"}}, "session.type"),
        ({"session": {"audio": {"output": {"voice": "nobody"}}}}, "session.audio.output.voice"),
        ({"colour": 1}, "colour"),
    ],
)
async def test_wrong_client_secret_requests(serve_ws, body, param):
    server = await serve_ws()
    async with server.http.post(f"{server.base}/v1/realtime/client_secrets", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param
