"""Transcription sessions over WebSocket, by the unmodified ``openai`` client and a raw one."""

from __future__ import annotations

import aiohttp
import pytest

from tests.cascade_double import DoubleCascade
from tests.protocol import check_server_event
from tests.ws_server import pcm, spoken


async def test_with_the_openai_client(serve_ws):
    server = await serve_ws(DoubleCascade(transcripts=["one", "two"]))
    query = {"intent": "transcription"}
    async with server.client() as client, client.realtime.connect(extra_query=query) as connection:
        heard = {"transcription": {"model": "gpt-4o-transcribe", "language": "en"}}
        heard["turn_detection"] = {"type": "server_vad", "silence_duration_ms": 300}
        await connection.session.update(session={"type": "transcription", "audio": {"input": heard}})
        texts, kinds = [], []
        await connection.input_audio_buffer.append(audio=pcm(spoken()))
        async for event in connection:
            check_server_event(event.to_dict())
            kinds.append(event.type)
            if event.type == "session.updated":
                assert event.session.type == "transcription"
                assert event.session.audio.input.transcription.model == "gpt-4o-transcribe"
            if event.type == "conversation.item.input_audio_transcription.completed":
                texts.append(event.transcript)
                if len(texts) == 2:
                    break
                await connection.input_audio_buffer.append(audio=pcm(spoken()))
    assert texts == ["one", "two"]
    assert not server.cascade.requests and not any(kind.startswith("response.") for kind in kinds)


async def test_by_a_client_secret(serve_ws):
    server = await serve_ws(DoubleCascade(transcripts=["one"]))
    asked = {"session": {"type": "transcription", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}}
    async with server.http.post(f"{server.base}/v1/realtime/client_secrets", json=asked) as response:
        made = await response.json()
    assert made["session"]["type"] == "transcription"
    async with server.client(made["value"]) as client, client.realtime.connect(extra_query={}) as connection:
        created = await connection.recv()
        assert (created.type, created.session.type) == ("session.created", "transcription")


@pytest.mark.parametrize("path", ["?model=nobody", "?intent=transcription&model=nobody"])
async def test_a_model_that_nobody_serves(serve_ws, path):
    server = await serve_ws(DoubleCascade())
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with server.raw(f"/v1/realtime{path}"):
            pass
    assert refused.value.status == 404


async def test_language_and_prompt_reach_the_ears(serve_ws):
    server = await serve_ws(DoubleCascade(transcripts=["one"]))
    async with (
        server.client() as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        heard = {"transcription": {"model": "whisper-1", "language": "en-GB", "prompt": "Names: Aoife."}}
        await connection.session.update(session={"type": "transcription", "audio": {"input": heard}})
        await connection.input_audio_buffer.append(audio=pcm(spoken()))
        async for event in connection:
            if event.type == "conversation.item.input_audio_transcription.completed":
                break
    assert server.cascade.asked
    assert {(asked.language, asked.prompt) for asked in server.cascade.asked} == {("en", "Names: Aoife.")}
