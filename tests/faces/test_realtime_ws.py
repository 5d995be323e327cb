"""Realtime over WebSocket: the unmodified ``openai`` client, and a raw one that misbehaves, over a double cascade."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.cascade_double import TONE_LEVEL, DoubleCascade, tone
from tests.speech import rms, silence, voice
from tests.ws_server import SERVER_EVENT, Raw, Server, pcm, spoken
from voicechat.faces import realtime_ws
from voicechat.faces.admission import ADMISSION
from voicechat.faces.app import FaceSettings
from voicechat.faces.client_secrets import SECRETS
from voicechat.faces.realtime_shell import Shell
from voicechat.media import g711
from voicechat.media.resample import to_pcm
from voicechat.realtime.session import Session, SessionLimits


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    servers: list[Server] = []

    async def start(cascade: DoubleCascade | None = None, **settings: Any) -> Server:
        server = Server(cascade or DoubleCascade(), FaceSettings(**settings))
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


async def test_three_spoken_turns_with_the_openai_client(serve):
    server = await serve(DoubleCascade(transcripts=["one", "two", "three"], answer=None))
    async with server.client() as client, client.realtime.connect(model="gpt-realtime") as connection:
        detection = {"type": "server_vad", "silence_duration_ms": 300}
        await connection.session.update(
            session={"type": "realtime", "instructions": "Be brief.", "audio": {"input": {"turn_detection": detection}}}
        )
        answers = []
        for _ in range(3):
            await connection.input_audio_buffer.append(audio=pcm(spoken()))
            audio, transcript = b"", ""
            async for event in connection:
                SERVER_EVENT.validate_python(event.to_dict())
                if event.type == "response.output_audio.delta":
                    audio += base64.b64decode(event.delta)
                elif event.type == "response.output_audio_transcript.delta":
                    transcript += event.delta
                elif event.type == "response.done":
                    assert event.response.status == "completed"
                    break
            assert np.array_equal(np.frombuffer(audio, "<i2"), tone(0.9))
            answers.append(transcript)
    assert answers == ["You said: one.", "You said: two.", "You said: three."]
    assert [len(sound) / 16_000 for sound in server.cascade.heard] == pytest.approx([1.3] * 3, abs=0.2)
    assert len(server.cascade.requests[-1].messages) == 6


async def test_barge_in_and_truncate_with_the_openai_client(serve):
    server = await serve(DoubleCascade(transcripts=["tell me", "stop"], answer="word " * 200, word_delay=0.05))
    async with server.client() as client, client.realtime.connect(model="gpt-realtime") as connection:
        await connection.input_audio_buffer.append(audio=pcm(spoken()))
        item_id, played, interrupted = "", 0, False
        async for event in connection:
            if event.type == "response.output_audio.delta" and not interrupted:
                played += len(base64.b64decode(event.delta)) // 48
                item_id = event.item_id
                if played > 1000:
                    interrupted = True
                    await connection.input_audio_buffer.append(audio=pcm(voice(0.6, 24_000)))
            elif event.type == "response.done":
                assert event.response.status_details.reason == "turn_detected"
                await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=900)
            elif event.type == "conversation.item.truncated":
                assert event.audio_end_ms == 900
                break
        await connection.conversation.item.retrieve(item_id=item_id)
        async for event in connection:
            if event.type == "conversation.item.retrieved":
                break
        content = event.item.content[0]
        assert len(base64.b64decode(content.audio)) == 900 * 48
        assert content.transcript.split() == ["word"] * 3
    assert server.cascade.responses[0].cancelled.is_set()


def sound_of(raw: Raw, item_id: str) -> np.ndarray:
    """All sound of an item that came."""
    deltas = [event["delta"] for event in raw.all("response.output_audio.delta") if event["item_id"] == item_id]
    return np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2")


async def murmured(raw: Raw) -> dict[str, Any]:
    """Ask, listen to the reply for a second, and say something short in it, at which the client stops; the item that
    was stopped."""
    detection = {"type": "server_vad", "silence_duration_ms": 1500}
    await raw.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
    await raw.say(spoken())
    added = await raw.until("response.output_item.added")
    while len(sound_of(raw, added["item"]["id"])) < 24_000 * 1.5:
        await raw.until("response.output_audio.delta", len(raw.all("response.output_audio.delta")) + 1)
    await raw.say(voice(0.4, 24_000))
    await raw.until("input_audio_buffer.speech_started", 2)
    await raw.tell("conversation.item.truncate", item_id=added["item"]["id"], content_index=0, audio_end_ms=1000)
    await raw.until("conversation.item.truncated")
    return dict(added["item"])


async def be_quiet(raw: Raw) -> None:
    """As a live microphone is, so that the ears have time."""
    for _ in range(80):
        await raw.say(silence(0.02, 24_000))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("word_delay", [0.03, 0.15], ids=["ahead", "slow"])
async def test_a_listeners_word_does_not_end_the_reply(serve, word_delay):
    words = [f"w{number}" for number in range(16)]
    cascade = DoubleCascade(transcripts=["tell me", "Mm-hm."], answer=" ".join(words), word_delay=word_delay)
    server = await serve(cascade)
    async with server.raw() as raw:
        stopped = await murmured(raw)
        await be_quiet(raw)
        rest = (await raw.until("response.output_item.added", 2))["item"]
        first, second = (await raw.until("response.done"), await raw.until("response.done", 2))
        assert first["response"]["status"] in ("cancelled", "completed")
        assert second["response"]["status"] == "completed" and second["response"]["id"] != first["response"]["id"]
        heard = np.concatenate([sound_of(raw, stopped["id"])[:24_000], sound_of(raw, rest["id"])])
        assert np.array_equal(heard, tone(16 * 0.3)), "on from the very sample, to the end"
        used = [event["response"]["usage"] or {} for event in (first, second)]
        assert sum(usage.get("output_tokens", 0) for usage in used) == 16 + 16 * 0.3 * 25, "counted once"
        assert len(raw.all("input_audio_buffer.committed")) == 1 and len(cascade.requests) == 1
        await raw.ask("And?")
        await raw.until("response.created", 3)
        told = [message for message in cascade.requests[-1].messages if message.role == "assistant"]
        assert [part.text for message in told for part in message.parts] == [" ".join(words)], "one turn"


async def test_an_interruption_ends_the_reply(serve):
    cascade = DoubleCascade(transcripts=["tell me", "Stop it."], answer="word " * 100, word_delay=0.1)
    server = await serve(cascade)
    async with server.raw() as raw:
        await murmured(raw)
        assert not cascade.responses[0].cancelled.is_set(), "it may be nothing"
        await be_quiet(raw)
        await raw.until("response.created", 2)
        assert cascade.responses[0].cancelled.is_set()
        (part,) = cascade.requests[1].messages[-1].parts
        assert part.text == "Stop it."


async def test_a_client_that_goes_away_while_it_is_not_decided(serve):
    server = await serve(DoubleCascade(transcripts=["tell me", "Mm-hm."], answer="word " * 500, word_delay=0.05))
    async with server.raw() as raw:
        await murmured(raw)
    await server.until_empty()
    assert server.cascade.responses[0].cancelled.is_set()


async def test_errors_come_through_the_openai_client(serve):
    server = await serve()
    async with server.client() as client, client.realtime.connect(model="gpt-realtime") as connection:
        await connection.input_audio_buffer.commit()
        await connection.response.cancel()
        codes = []
        async for event in connection:
            if event.type == "error":
                codes.append(event.error.code)
                if len(codes) == 2:
                    break
    assert codes == ["input_audio_buffer_commit_empty", "response_cancel_not_active"]


async def test_manual_mode_in_pieces_and_text_out(serve):
    server = await serve()
    async with server.raw() as raw:
        session = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
        await raw.tell("session.update", session=session)
        updated = await raw.until("session.updated")
        assert updated["session"]["audio"]["input"]["turn_detection"] is None
        await raw.say(spoken(), chunk=1001)
        await raw.tell("input_audio_buffer.commit")
        await raw.tell("response.create")
        done = await raw.until("response.done")
    assert done["response"]["output"][0]["content"] == [{"type": "output_text", "text": "You said: hello there."}]
    assert server.cascade.requests[0].audio is False


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
async def test_telephone_sound_in_and_out(serve, law):
    server = await serve()
    async with server.raw() as raw:
        sides = {"input": {"format": {"type": f"audio/{law}"}}, "output": {"format": {"type": f"audio/{law}"}}}
        await raw.tell("session.update", session={"type": "realtime", "audio": sides})
        sound = np.concatenate([silence(0.4, 8000), voice(0.8, 8000), silence(0.8, 8000)])
        data = g711.encode(to_pcm(sound), law)
        await raw.tell("input_audio_buffer.append", audio=base64.b64encode(data).decode())
        await raw.until("response.done")
    answer = g711.decode(raw.sound(), law)
    assert len(answer) == pytest.approx(8000 * 4 * 0.3, abs=8)
    assert rms(answer / 32768) == pytest.approx(TONE_LEVEL / 32768 / 2**0.5, rel=0.05)
    assert rms(server.cascade.heard[0]) == pytest.approx(0.12 * (0.8 / 1.3) ** 0.5, rel=0.15)


async def test_speed(serve):
    server = await serve()
    async with server.raw() as raw:
        await raw.tell("session.update", session={"type": "realtime", "audio": {"output": {"speed": 1.5}}})
        await raw.ask()
        await raw.until("response.done")
    assert len(raw.sound()) / 48_000 == pytest.approx(3 * 0.3 / 1.5, rel=0.1)


async def test_a_long_append_is_taken(serve):
    server = await serve()
    async with server.raw() as raw:
        await raw.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
        await raw.tell("input_audio_buffer.append", audio=base64.b64encode(bytes(15 * (1 << 20) * 3 // 4)).decode())
        await raw.tell("input_audio_buffer.commit")
        committed = await raw.until("input_audio_buffer.committed")
        await raw.tell("conversation.item.delete", item_id=committed["item_id"])
        await raw.until("conversation.item.deleted")


async def test_messages_that_are_too_long(serve):
    server = await serve()
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


async def test_bad_messages_are_answered_and_the_session_lives(serve):
    server = await serve()
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


async def test_beta_is_refused_clearly(serve):
    server = await serve()
    for options in (
        {"headers": {"OpenAI-Beta": "realtime=v1"}},
        {"protocols": ("realtime", "openai-beta.realtime-v1")},
    ):
        async with server.raw(**options) as raw:
            assert await raw.closed() == 1008
            assert raw.events[0]["error"]["code"] == "beta_api_shape_disabled"


async def test_keys(serve):
    server = await serve(api_keys=("sk-right",))
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


async def test_client_secrets(serve):
    server = await serve(api_keys=("sk-right",))
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
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"session": {"audio": {"output": {"voice": "nobody"}}}}, "session.audio.output.voice"),
        ({"colour": 1}, "colour"),
    ],
)
async def test_wrong_client_secret_requests(serve, body, param):
    server = await serve()
    async with server.http.post(f"{server.base}/v1/realtime/client_secrets", json=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param


async def test_no_websocket(serve):
    server = await serve()
    async with server.http.get(f"{server.base}/v1/realtime?model=x") as response:
        assert response.status == 426
        assert (await response.json())["error"]["code"] == "upgrade_required"


async def test_refusals_before_the_handshake(serve):
    not_ready = await serve(DoubleCascade(ready=False))
    full = await serve(max_realtime_sessions=1)
    async with full.raw():
        for server, path, status in (
            (not_ready, "/v1/realtime?model=x", 503),
            (full, "/v1/realtime?model=x", 503),
            (full, "/v1/realtime?call_id=rtc_1", 400),
            (full, "/v1/realtime?intent=transcription", 400),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with server.raw(path):
                    pass
            assert refused.value.status == status
    await full.until_empty()
    async with full.raw() as raw:
        await raw.until("session.created")


async def test_pages_of_other_sites(serve):
    server = await serve(allowed_origins=("https://friend.example",))
    for origin in ("https://foe.example", "null", "http://localhost:1"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with server.raw(origin=origin):
                pass
        assert refused.value.status == 403
    for origin in ("https://friend.example", server.base):
        async with server.raw(origin=origin) as raw:
            await raw.until("session.created")
    keyed = await serve(api_keys=("sk-right",))
    async with keyed.raw(origin="https://foe.example", headers={"Authorization": "Bearer sk-right"}) as raw:
        await raw.until("session.created")


async def test_calls_over_webrtc_take_places_too(serve):
    server = await serve(max_realtime_sessions=1)
    calls = [0]
    server.app[ADMISSION].add(lambda: calls[0])
    calls[0] = 1
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with server.raw():
            pass
    assert refused.value.status == 503
    calls[0] = 0
    async with server.raw() as raw:
        await raw.until("session.created")


async def test_a_client_that_vanishes_leaves_nothing(serve):
    server = await serve(DoubleCascade(answer="word " * 500, word_delay=0.05))
    async with server.raw() as raw:
        await raw.ask()
        await raw.until("response.output_audio.delta")
        raw.ws._response.connection.transport.abort()
        await server.until_empty()
    response = server.cascade.responses[0]
    assert response.cancelled.is_set()


async def test_the_memory_of_a_session_is_given_back(serve):
    def sessions() -> list[object]:
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing) in (Session, Shell)]

    others = sessions()  # what earlier tests' tracebacks and fixtures may still hold
    server = await serve()
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


async def test_a_client_that_does_not_read_holds_the_cascade_back(serve):
    server = await serve(DoubleCascade(answer="word " * 3000, word_delay=0, first_delay=0))
    async with server.raw() as raw:
        await raw.until("session.created")
        await raw.ask()
        raw.ws._response.connection.transport.pause_reading()
        await asyncio.sleep(1.0)
        (transport,) = server.app[realtime_ws.WS_FACE]._live
        assert transport._queued < 2 * realtime_ws._HIGH_WATER
        raw.ws._response.connection.transport.abort()
        await server.until_empty()


async def test_a_session_expires_with_a_warning(serve):
    server = await serve(DoubleCascade(answer="word " * 500, word_delay=0.05))
    limits = SessionLimits(max_seconds=0.6, warn_seconds=0.3)
    server.app[realtime_ws.WS_FACE]._settings = realtime_ws.WsSettings(limits=limits)
    async with server.raw() as raw:
        await raw.ask()
        assert (await raw.until("session.updated"))["session"]["expires_at"] > 0
        assert (await raw.until("error"))["error"]["code"] == "session_expired"
        assert (await raw.until("response.done"))["response"]["status"] == "cancelled"
        assert await raw.closed() == 1001
    await server.until_empty()


async def test_a_bug_ends_its_session_only(serve, monkeypatch):
    server = await serve()
    async with server.raw() as broken, server.raw() as healthy:
        await broken.until("session.created")
        with monkeypatch.context() as patch:
            patch.setattr("voicechat.realtime.commands.Commands.obey", lambda *_: 1 / 0)
            await broken.tell("input_audio_buffer.clear")
            assert await broken.closed() == 1011
        await healthy.ask()
        await healthy.until("response.done")


async def test_shutdown_closes_with_1001(serve):
    server = await serve()
    async with server.raw() as raw:
        await raw.until("session.created")
        stopping = asyncio.create_task(server.runner.cleanup())
        assert await raw.closed() == 1001
        await stopping
