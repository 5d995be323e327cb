"""How a WebSocket and its session end, and what they leave behind; and what does not end them."""

from __future__ import annotations

import asyncio
import contextlib
import gc

from tests.cascade_double import DoubleCascade
from tests.ws_server import spoken
from voicechat.faces import realtime_ws
from voicechat.faces.realtime_shell import Shell
from voicechat.realtime.session import Session, SessionLimits


async def test_messages_that_are_too_long(serve_ws):
    server = await serve_ws()
    async with server.raw() as raw:
        await raw.ws.send_str("x" * ((16 << 20) + 1))
        assert (await raw.until("error"))["error"]["code"] == "message_too_long"
        await raw.tell("input_audio_buffer.append", audio="A" * ((15 << 20) + 4))
        assert (await raw.until("error", 2))["error"]["param"] == "audio"
        # far too long: refused by its head, so that the connection may be reset before the client reads code 1009
        with contextlib.suppress(ConnectionError):
            await raw.ws.send_str("x" * ((24 << 20) + 1))
            assert await raw.closed() in (1006, 1009)
    await server.until_empty()


async def test_bad_messages_are_answered_and_the_session_lives(serve_ws):
    server = await serve_ws()
    async with server.raw() as raw:
        wrong = [
            "",
            "{",
            "[]",
            "null",
            '{"type": 5}',
            '{"type": "x"}',
            '{"type": "input_audio_buffer.append"}',
            "[" * 9999,
        ]
        for text in wrong:
            await raw.ws.send_str(text)
        await raw.ws.send_bytes(b"\xff\xfe")
        last = await raw.until("error", len(wrong) + 1)
        assert last["error"]["code"] == "invalid_json"
        await raw.ask()
        assert (await raw.until("response.done"))["response"]["status"] == "completed"


async def test_a_client_that_vanishes_leaves_nothing(serve_ws):
    server = await serve_ws(DoubleCascade(answer="word " * 500, word_delay=0.05))
    async with server.raw() as raw:
        await raw.ask()
        await raw.until("response.output_audio.delta")
        raw.ws._response.connection.transport.abort()
        await server.until_empty()
    response = server.cascade.responses[0]
    assert response.cancelled.is_set()


async def test_the_memory_of_a_session_is_given_back(serve_ws):
    def sessions() -> list[object]:
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) in (Session, Shell)]

    others = sessions()  # what earlier tests' tracebacks and fixtures may still hold
    server = await serve_ws()
    for _ in range(2):
        async with server.raw() as raw:
            await raw.say(spoken())
            await raw.until("response.done")
        await server.until_empty()

    def left() -> list[object]:
        return [thing for thing in sessions() if not any(thing is other for other in others)]

    for _ in range(100):  # the last task's frame goes some turns of the loop after the session
        if not left():
            break
        await asyncio.sleep(0.05)
    assert not left()


async def test_a_client_that_does_not_read_holds_the_cascade_back(serve_ws):
    server = await serve_ws(DoubleCascade(answer="word " * 3000, word_delay=0, first_delay=0))
    async with server.raw() as raw:
        await raw.until("session.created")
        await raw.ask()
        raw.ws._response.connection.transport.pause_reading()
        await asyncio.sleep(1.0)
        (transport,) = server.app[realtime_ws.WS_FACE]._live
        assert transport._queued < 2 * realtime_ws._HIGH_WATER
        raw.ws._response.connection.transport.abort()
        await server.until_empty()


async def test_a_session_expires_with_a_warning(serve_ws):
    server = await serve_ws(DoubleCascade(answer="word " * 500, word_delay=0.05))
    limits = SessionLimits(max_seconds=0.6, warn_seconds=0.3)
    server.app[realtime_ws.WS_FACE]._settings = realtime_ws.WsSettings(limits=limits)
    async with server.raw() as raw:
        await raw.ask()
        assert (await raw.until("session.updated"))["session"]["expires_at"] > 0
        assert (await raw.until("error"))["error"]["code"] == "session_expired"
        assert (await raw.until("response.done"))["response"]["status"] == "cancelled"
        assert await raw.closed() == 1001
    await server.until_empty()


async def test_a_bug_ends_its_session_only(serve_ws, monkeypatch):
    server = await serve_ws()
    async with server.raw() as broken, server.raw() as healthy:
        await broken.until("session.created")
        with monkeypatch.context() as patch:
            patch.setattr("voicechat.realtime.commands.Commands.obey", lambda *_: 1 / 0)
            await broken.tell("input_audio_buffer.clear")
            assert await broken.closed() == 1011
        await healthy.ask()
        await healthy.until("response.done")


async def test_shutdown_closes_with_1001(serve_ws):
    server = await serve_ws()
    async with server.raw() as raw:
        await raw.until("session.created")
        stopping = asyncio.create_task(server.runner.cleanup())
        assert await raw.closed() == 1001
        await stopping
