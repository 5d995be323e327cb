"""Going down: nothing new is taken, what is live is finished, within bounds."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientSession, WSServerHandshakeError

from voicechat.contract.errors import NotReady
from voicechat.server import drain

CHAT = {"model": "fake-voice", "messages": [{"role": "user", "content": "Hello"}]}


async def test_a_live_stream_is_finished_and_nothing_new_is_taken(serve, served_app, cascade) -> None:
    cascade.reply = "one two three"
    cascade.gate.clear()  # the reply waits in its middle
    url = await serve()
    async with ClientSession() as http:
        asking = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True}))
        await cascade.asked.wait()
        draining = asyncio.create_task(drain(served_app(), 60.0, asyncio.Event()))
        ready = await http.get(f"{url}/readyz")
        assert (ready.status, (await ready.json())["status"]) == (503, "draining")
        refused = await http.post(f"{url}/v1/chat/completions", json=CHAT)
        assert refused.status == 503
        assert (await refused.json())["error"]["code"] == "draining"
        assert refused.headers["Retry-After"]
        with pytest.raises(WSServerHandshakeError) as shut:
            await http.ws_connect(f"{url}/v1/realtime?model=fake-voice")
        assert shut.value.status == 503
        assert not draining.done()
        cascade.gate.set()
        text = await (await asking).text()
        assert text.endswith("data: [DONE]\n\n")
        await draining


@pytest.mark.parametrize("hurried", [False, True])
async def test_it_does_not_wait_for_ever(serve, served_app, cascade, hurried: bool) -> None:
    """Not beyond its bound, nor once a second signal came."""
    cascade.gate.clear()
    url = await serve()
    hurry = asyncio.Event()
    if hurried:
        hurry.set()
    async with ClientSession() as http:
        asking = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=CHAT))
        await cascade.asked.wait()
        await drain(served_app(), 3600.0 if hurried else 0.01, hurry)
        assert not asking.done()
        cascade.gate.set()
        await asking


async def test_who_is_broken_off_is_told(serve, served_app, cascade) -> None:
    cascade.reply = "one two three"
    cascade.gate.clear()
    url = await serve()

    def break_off() -> None:
        cascade.error = NotReady("The server is going down.")
        cascade.gate.set()

    async with ClientSession() as http:
        asking = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True}))
        await cascade.asked.wait()
        await drain(served_app(), 0.01, asyncio.Event(), break_off)
        assert "The server is going down." in await (await asking).text()


async def test_a_realtime_session_learns_that_it_will_end(serve, served_app) -> None:
    url = await serve()
    async with ClientSession() as http, http.ws_connect(f"{url}/v1/realtime?model=fake-voice") as ws:
        created = await ws.receive_json()
        assert created["type"] == "session.created"
        await drain(served_app(), 0.01, asyncio.Event())
        while (event := await ws.receive_json())["type"] != "error":
            pass
        assert (event["error"]["code"], event["error"]["type"]) == ("session_expired", "server_error")
