"""The chat client against the real face over a cascade without models."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from tests.bench.served_double import served
from tests.cascade_double import DoubleCascade
from tests.speech import voice
from voicechat.bench.chat_client import ChatClient, ClientError, audio_part, text_part
from voicechat.contract.errors import Overloaded, StageFailed
from voicechat.faces.app import FaceSettings
from voicechat.media.resample import to_pcm
from voicechat.media.wav import encode_wav


async def test_an_answer_and_when_its_parts_came() -> None:
    with served(DoubleCascade()) as base:
        async with aiohttp.ClientSession() as http:
            client = ChatClient(http, base)
            reply = await client.ask("one two three")
            assert client.model == "double"
    assert reply.text == "You said: one two three."
    assert reply.audio_s == pytest.approx(5 * 0.3)
    assert len(reply.chunks) == 5
    assert sum(length for _, length in reply.chunks) == pytest.approx(reply.audio_s)
    assert reply.first_text_s is not None
    assert reply.ttfa_s is not None
    assert 0 < reply.first_text_s <= reply.ttfa_s <= reply.chunks[-1][0] <= reply.done_s
    assert reply.finish_reason == "stop"
    assert reply.times["first_audio"] is not None
    assert reply.times["first_audio"] <= reply.ttfa_s


async def test_a_spoken_question_with_words() -> None:
    cascade = DoubleCascade()
    with served(cascade) as base:
        async with aiohttp.ClientSession() as http:
            sound = encode_wav(to_pcm(voice(0.5)), 16_000)
            await ChatClient(http, base).ask(
                [text_part("Listen."), audio_part(sound)], latency_first=False, max_tokens=7
            )
    (request,) = cascade.requests
    assert len(request.messages[0].parts) == 2
    assert not request.latency_first
    assert request.sampling.max_tokens == 7


async def test_errors_are_told_in_the_servers_words() -> None:
    async with aiohttp.ClientSession() as http:
        with served(DoubleCascade(fail_respond=Overloaded("All slots are taken."))) as base:
            with pytest.raises(ClientError, match=r"All slots are taken.*HTTP 429"):
                await ChatClient(http, base).ask("Hello?")
        broken = DoubleCascade(fail_respond=StageFailed("talker", "The talker stage died."), fail_after=2)
        with served(broken) as base:
            with pytest.raises(ClientError, match="The talker stage died"):
                await ChatClient(http, base).ask("one two three")
            with pytest.raises(ClientError, match="does not exist"):
                await ChatClient(http, base, model="another").ask("Hello?")
        with pytest.raises(ClientError, match="can't be reached"):
            await ChatClient(http, base).ask("Hello?")


async def test_a_key() -> None:
    async with aiohttp.ClientSession() as http:
        with served(DoubleCascade(), FaceSettings(api_keys=("secret",))) as base:
            with pytest.raises(ClientError, match="401"):
                await ChatClient(http, base).ask("Hello?")
            reply = await ChatClient(http, base, api_key="secret").ask("Hello?")
            assert reply.audio_s > 0


async def test_it_does_not_wait_for_ever() -> None:
    async with aiohttp.ClientSession() as http:
        with served(DoubleCascade(first_delay=5)) as base:
            with pytest.raises(ClientError, match=r"within 0.1 s"):
                await ChatClient(http, base).ask("Hello?", timeout_s=0.1)


@pytest.mark.parametrize(
    ("events", "what"),
    [
        (b"data: {}\n\n", "can't be read"),
        (b"data: nonsense\n\n", "can't be read"),
        (b'data: {"choices": [{"delta": {"audio": {"data": "!"}}}]}\n\n', "can't be read"),
        (b'data: {"choices": []}\n\n', "broke off"),
        (b"", "broke off"),
    ],
)
async def test_a_server_that_talks_nonsense(events: bytes, what: str) -> None:
    async def chat(_: web.Request) -> web.Response:
        return web.Response(body=events, content_type="text/event-stream")

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "odd", "default_voice": "x"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as http:
        with pytest.raises(ClientError, match=what):
            await ChatClient(http, f"http://127.0.0.1:{runner.addresses[0][1]}").ask("Hello?")
    await runner.cleanup()
