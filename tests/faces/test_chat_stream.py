"""The ``openai`` package, unmodified, talks with the chat face: streams."""

from __future__ import annotations

import asyncio
import base64
import json

import numpy as np
import openai
import pytest
from aiohttp import ClientSession
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from voicechat.contract.errors import InvalidRequest, StageFailed
from voicechat.faces.app import FaceSettings

MODEL = "fake-voice"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "ann", "format": "pcm16"}}
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "one two three"}], "stream": True}


async def chunks_of(client: AsyncOpenAI, **options) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "one two three"}], stream=True, **options
    )
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(warnings="error"), strict=True)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    return chunks


async def test_text(client: AsyncOpenAI) -> None:
    chunks = await chunks_of(client)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert all(delta.role is None for delta in deltas[1:])
    assert [delta.content for delta in deltas[1:-1]] == ["You", " said:", " one", " two", " three"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 6 + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_speech(client: AsyncOpenAI, cascade) -> None:
    chunks = await chunks_of(client, **SPOKEN)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert all(delta.content is None for delta in deltas)
    audios = [delta.audio for delta in deltas if delta.audio is not None]
    assert len(audios) == len(deltas) - 2
    assert audios[0].model_dump(exclude_unset=True) == {"id": audios[0].id}
    assert audios[0].id.startswith("audio_")
    assert list(audios[-1].model_dump(exclude_unset=True)) == ["expires_at"]
    assert audios[-1].expires_at > chunks[0].created
    assert all(len(audio.model_dump(exclude_unset=True)) == 1 for audio in audios)
    assert "".join(audio.transcript or "" for audio in audios) == "You said: one two three"
    sound = np.concatenate([np.frombuffer(base64.b64decode(a.data), "<i2") for a in audios if a.data])
    assert sound.size == 5 * 4_800
    assert np.sqrt(np.mean((sound / 32768.0) ** 2)) == pytest.approx(0.25, rel=0.01)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert cascade.responses[0].request.latency_first is True


async def test_usage_and_details(client: AsyncOpenAI) -> None:
    chunks = await chunks_of(
        client, stream_options={"include_usage": True}, extra_body={"include_details": True}, **SPOKEN
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5 + 25
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].model_extra["details"]["times"]["done"] == 0.5


async def test_the_raw_stream(url: str, http: ClientSession) -> None:
    async with http.post(f"{url}/v1/chat/completions", json=BODY) as reply:
        assert reply.status == 200
        assert reply.content_type == "text/event-stream"
        assert reply.headers["Cache-Control"] == "no-cache"
        assert reply.headers["x-request-id"].startswith("req_")
        events = (await reply.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") and "\n" not in event for event in events[:-2])
    assert json.loads(events[0][6:])["object"] == "chat.completion.chunk"


async def test_the_helper_that_gathers_a_stream(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "one two"}], **SPOKEN
    ) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    audio = final.choices[0].message.audio
    assert audio.transcript == "You said: one two"
    assert audio.id.startswith("audio_")


async def test_the_reply_can_be_referred_to(client: AsyncOpenAI, cascade) -> None:
    chunks = await chunks_of(client, **SPOKEN)
    audio_id = chunks[1].choices[0].delta.audio.id
    messages = [{"role": "assistant", "audio": {"id": audio_id}}, {"role": "user", "content": "again"}]
    await client.chat.completions.create(model=MODEL, messages=messages)
    assert cascade.responses[-1].request.messages[0].parts[0].text == "You said: one two three"


async def test_words_and_sound_come_as_they_are_made(client: AsyncOpenAI, cascade) -> None:
    cascade.gate.clear()
    asked = asyncio.create_task(
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "one"}], stream=True, **SPOKEN
        )
    )
    cascade.pause_s = 0.05
    async with asyncio.timeout(10):
        await cascade.asked.wait()
        cascade.gate.set()
        stream = await asked
        ended = [cascade.responses[0].ended async for chunk in stream if chunk.choices[0].delta.audio]
    assert ended[0] is False
    assert ended[-1] is True


async def test_a_failure_in_the_middle_is_one_event_and_the_end(client: AsyncOpenAI, cascade, url, http) -> None:
    cascade.error, cascade.fails_after = StageFailed("talker", "The talker died."), 3
    seen = []

    async def read() -> None:
        async for chunk in await client.chat.completions.create(**BODY, **SPOKEN):
            seen.append(chunk)

    with pytest.raises(openai.APIError, match="The talker died") as error:
        await read()
    assert len(seen) == 2 + 3
    assert error.value.code == "stage_failed"
    async with http.post(f"{url}/v1/chat/completions", json=BODY) as reply:
        events = (await reply.text()).strip().split("\n\n")
    assert "error" in json.loads(events[-1][6:])
    assert sum("error" in json.loads(event[6:]) for event in events) == 1


async def test_a_bug_in_the_middle_is_one_clean_event(cascade, url: str, http: ClientSession, caplog) -> None:
    cascade.error, cascade.fails_after = ZeroDivisionError("secret"), 2
    async with http.post(f"{url}/v1/chat/completions", json=BODY) as reply:
        assert reply.status == 200
        text = await reply.text()
    assert json.loads(text.strip().split("\n\n")[-1][6:])["error"]["type"] == "server_error"
    assert "secret" not in text
    assert "ZeroDivisionError" in caplog.text


async def test_a_refusal_by_the_cascade_names_the_field(client: AsyncOpenAI, cascade) -> None:
    for param, shown in [("voice", "audio.voice"), ("messages", "messages"), ("sampling.seed", "seed"), (None, None)]:
        cascade.error = InvalidRequest("No.", param=param, code="no")
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(**BODY)
        assert (error.value.param, error.value.code) == (shown, "no")


@pytest.mark.parametrize("spoken", [False, True])
@pytest.mark.parametrize("words", [0, 2])
async def test_hanging_up_cancels(client: AsyncOpenAI, cascade, words: int, spoken: bool) -> None:
    cascade.reply, cascade.pause_s = "word " * 10_000, 0.02
    if words == 0:
        cascade.gate.clear()
    opened = asyncio.create_task(client.chat.completions.create(**BODY, **(SPOKEN if spoken else {})))
    async with asyncio.timeout(10):
        if words == 0:
            await cascade.asked.wait()
            opened.cancel()
        else:
            stream = await opened
            for _ in range(words):
                await anext(stream)
            await stream.close()
        await cascade.responses[0].cancelled.wait()


async def test_a_reader_that_stands_still_is_let_go(cascade, serve) -> None:
    url = await serve(FaceSettings(write_timeout_s=0.2))
    cascade.reply = "word " * 20_000
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1_024)
    body = json.dumps({**BODY, **SPOKEN}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    async with asyncio.timeout(20):
        await cascade.asked.wait()
        await cascade.responses[0].cancelled.wait()
    assert not cascade.responses[0].ended
    writer.close()
