"""``POST /v1/audio/speech`` with the unmodified ``openai`` client, over a cascade without models."""

from __future__ import annotations

import asyncio
import base64
import io
import json

import aiohttp
import av
import numpy as np
import openai
import pytest
from aiohttp import ClientSession
from openai import AsyncOpenAI

from voicechat.contract.errors import InvalidRequest, NotReady, Overloaded, StageFailed
from voicechat.faces.app import FaceSettings
from voicechat.media.encode import FORMATS

TEXT = "one two three four five"
SECONDS = 5 * 0.2
ASK = {"model": "fake-voice", "voice": "bob", "input": TEXT}
CONTAINERS = {"mp3": "mp3", "opus": "ogg", "aac": "aac", "flac": "flac", "wav": "wav"}
PADDING_S = {"mp3": 0.1, "opus": 0.001, "aac": 0.13, "flac": 0.0, "wav": 0.0, "pcm": 0.0}
"""At most this much around the sound: a file whose end is not known at its start can't declare its padding."""


def decoded(data: bytes, fmt: str) -> tuple[np.ndarray, int]:
    """float32 sound and its rate, read by FFmpeg, which finds the container out by itself."""
    if fmt == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768, 24_000
    with av.open(io.BytesIO(data)) as container:
        assert CONTAINERS[fmt] in container.format.name.split(",")
        stream = container.streams.audio[0]
        assert stream.codec_context.layout.nb_channels == 1
        blocks = [frame.to_ndarray().reshape(-1) for frame in container.decode(stream)]
        rate = stream.codec_context.sample_rate
    sound = np.concatenate(blocks)
    return (sound.astype(np.float32) / 32768 if sound.dtype == np.int16 else sound.astype(np.float32)), rate


def pitch(sound: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(sound.size)))
    return float(np.argmax(spectrum) * rate / sound.size)


@pytest.mark.parametrize("fmt", [None, *PADDING_S])
async def test_every_format(client: AsyncOpenAI, cascade, fmt: str | None) -> None:
    options = {} if fmt is None else {"response_format": fmt}
    reply = await client.audio.speech.create(**ASK, **options)
    fmt = fmt or "mp3"
    name = "pcm16" if fmt == "pcm" else fmt
    assert reply.response.headers["content-type"] == FORMATS[name].media_type
    assert reply.response.headers["transfer-encoding"] == "chunked"
    sound, rate = decoded(reply.content, fmt)
    assert SECONDS - 0.001 <= sound.size / rate <= SECONDS + PADDING_S[fmt]
    assert pitch(sound, rate) == pytest.approx(400, rel=0.02)
    assert np.sqrt(np.mean(sound**2)) == pytest.approx(0.25, rel=0.12)
    request = cascade.responses[0].request
    assert (request.text, request.voice, request.latency_first, request.seed) == (TEXT, "bob", True, None)


@pytest.mark.parametrize("fmt", list(PADDING_S))
async def test_the_sound_comes_as_it_is_made(client: AsyncOpenAI, cascade, fmt: str) -> None:
    cascade.pause_s = 0.03
    seen, size = [], 0
    text = "word " * 30
    async with client.audio.speech.with_streaming_response.create(
        **{**ASK, "input": text}, response_format=fmt
    ) as reply:
        data = b""
        async for piece in reply.iter_bytes():
            data += piece
            seen.append(cascade.responses[0].ended)
            size += 0 if seen[-1] else len(piece)
    assert seen[0] is False
    assert size > len(data) / 2
    sound, rate = decoded(data, fmt)
    assert 6.0 - 0.001 <= sound.size / rate <= 6.0 + PADDING_S[fmt]


async def test_the_reply_begins_with_the_first_sound(http: ClientSession, url: str, cascade) -> None:
    cascade.gate.clear()
    asked = asyncio.create_task(http.post(f"{url}/v1/audio/speech", json={**ASK, "response_format": "wav"}))
    await cascade.asked.wait()
    done, _ = await asyncio.wait({asked}, timeout=0.2)
    assert not done
    cascade.gate.set()
    async with await asked as reply:
        assert (await reply.content.readexactly(4)) == b"RIFF"


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("fmt", ["pcm", "mp3"])
async def test_speed(client: AsyncOpenAI, speed: float, fmt: str) -> None:
    text = "word " * 20
    reply = await client.audio.speech.create(**{**ASK, "input": text}, response_format=fmt, speed=speed)
    sound, rate = decoded(reply.content, fmt)
    assert sound.size / rate == pytest.approx(4.0 / speed, abs=0.03 + PADDING_S[fmt])
    assert pitch(sound, rate) == pytest.approx(400, rel=0.03)


@pytest.mark.parametrize("fmt", ["mp3", "wav", "pcm"])
async def test_events(http: ClientSession, url: str, fmt: str) -> None:
    body = {**ASK, "stream_format": "sse", "response_format": fmt}
    async with http.post(f"{url}/v1/audio/speech", json=body) as reply:
        assert reply.content_type == "text/event-stream"
        events = [json.loads(event[6:]) for event in (await reply.text()).strip().split("\n\n")]
    *deltas, done = events
    assert len(deltas) >= 5
    assert all(set(delta) == {"type", "audio"} and delta["type"] == "speech.audio.delta" for delta in deltas)
    sound, rate = decoded(b"".join(base64.b64decode(delta["audio"], validate=True) for delta in deltas), fmt)
    assert SECONDS - 0.001 <= sound.size / rate <= SECONDS + PADDING_S[fmt]
    usage = {"input_tokens": len(TEXT), "output_tokens": 25, "total_tokens": len(TEXT) + 25}
    assert done == {"type": "speech.audio.done", "usage": usage}


async def test_events_through_the_client(client: AsyncOpenAI) -> None:
    async with client.audio.speech.with_streaming_response.create(
        **ASK, stream_format="sse", response_format="pcm"
    ) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) async for line in reply.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["speech.audio.delta"] * 5 + ["speech.audio.done"]


async def test_what_a_request_may_hold(client: AsyncOpenAI, cascade) -> None:
    await client.audio.speech.create(
        model="gpt-4o-mini-tts",
        voice={"id": "ann"},
        input="x" * 4096,
        instructions="Whisper.",
        extra_body={"latency_first": False, "seed": 7},
    )
    request = cascade.responses[0].request
    assert (request.voice, request.latency_first, request.seed) == ("ann", False, 7)
    for model, voice, means in [("tts-1", "alloy", "ann"), ("tts-1-hd", "nova", "ann"), ("fake-voice", "ash", "bob")]:
        await client.audio.speech.create(model=model, voice=voice, input="hi")
        assert cascade.responses[-1].request.voice == means


WRONG = [
    ({"input": None}, 400, "input", "missing_required_parameter"),
    ({"input": ""}, 400, "input", "empty_string"),
    ({"input": " \n"}, 400, "input", "empty_string"),
    ({"input": "?!"}, 400, "input", "invalid_value"),
    ({"input": 5}, 400, "input", "invalid_type"),
    ({"input": ["a"]}, 400, "input", "invalid_type"),
    ({"input": "x" * 4097}, 400, "input", "string_above_max_length"),
    ({"model": None}, 400, "model", "missing_required_parameter"),
    ({"model": "gpt-4o"}, 404, "model", "model_not_found"),
    ({"model": 1}, 400, "model", "invalid_type"),
    ({"voice": None}, 400, "voice", "missing_required_parameter"),
    ({"voice": "nobody"}, 400, "voice", "invalid_value"),
    ({"voice": {"id": "nobody"}}, 400, "voice.id", "invalid_value"),
    ({"voice": {}}, 400, "voice.id", "missing_required_parameter"),
    ({"voice": 3}, 400, "voice", "invalid_type"),
    ({"response_format": "ogg"}, 400, "response_format", "invalid_value"),
    ({"response_format": "pcm16"}, 400, "response_format", "invalid_value"),
    ({"response_format": 1}, 400, "response_format", "invalid_type"),
    ({"speed": 0.2}, 400, "speed", "decimal_below_min_value"),
    ({"speed": 4.1}, 400, "speed", "decimal_above_max_value"),
    ({"speed": "fast"}, 400, "speed", "invalid_type"),
    ({"speed": True}, 400, "speed", "invalid_type"),
    ({"stream_format": "chunks"}, 400, "stream_format", "invalid_value"),
    ({"instructions": 1}, 400, "instructions", "invalid_type"),
    ({"instructions": "x" * 4097}, 400, "instructions", "string_above_max_length"),
    ({"latency_first": "yes"}, 400, "latency_first", "invalid_type"),
    ({"seed": 1.5}, 400, "seed", "invalid_type"),
    ({"stream": True}, 400, "stream", "unknown_parameter"),
]


@pytest.mark.parametrize(("fields", "status", "param", "code"), WRONG)
async def test_what_is_wrong_is_named(
    http: ClientSession, url: str, fields: dict[str, object], status: int, param: str, code: str
) -> None:
    async with http.post(f"{url}/v1/audio/speech", json={**ASK, **fields}) as reply:
        assert reply.content_type == "application/json"
        error = (await reply.json())["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert (reply.status, error["param"], error["code"]) == (status, param, code), error["message"]
    assert error["type"] == "invalid_request_error"


async def test_bodies_that_are_no_json_object(http: ClientSession, url: str) -> None:
    path, headers = f"{url}/v1/audio/speech", {"Content-Type": "application/json"}
    for body in (b"", b"{", b'{"input": NaN}', b"\xff"):
        async with http.post(path, data=body, headers=headers) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (400, "invalid_json")
    async with http.post(path, data=b"[]", headers=headers) as reply:
        assert (reply.status, (await reply.json())["error"]["message"]) == (400, "The body must be a JSON object.")
    async with http.post(path, data={"input": "x"}) as reply:
        assert (reply.status, (await reply.json())["error"]["code"]) == (415, "unsupported_content_type")
    async with http.get(path) as reply:
        assert (reply.status, reply.headers["Allow"]) == (405, "POST")


async def test_a_key_is_asked_for(serve, http: ClientSession) -> None:
    url = await serve(FaceSettings(api_keys=("k",)))
    for path in ("/v1/audio/speech", "/v1/voices", "/v1/voices/ann", "/v1/audio/voices"):
        method = "POST" if path.endswith("speech") else "GET"
        async with http.request(method, f"{url}{path}", json=ASK if method == "POST" else None) as reply:
            assert reply.status == 401
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        assert (await client.audio.speech.create(**ASK)).content
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.audio.speech.create(**ASK)


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (Overloaded("busy"), 429, "rate_limit_exceeded", None),
        (NotReady("warming up"), 503, "not_ready", None),
        (StageFailed("talker", "The talker died."), 500, "stage_failed", None),
        (InvalidRequest("No such text.", param="text"), 400, "invalid_value", "input"),
        (InvalidRequest("No such voice.", param="voice"), 400, "invalid_value", "voice"),
        (ZeroDivisionError("secret"), 500, None, None),
    ],
)
async def test_what_fails_before_the_first_sound_has_its_status(
    client: AsyncOpenAI, cascade, error: Exception, status: int, code: str, param: str, events: bool
) -> None:
    cascade.error = error
    with pytest.raises(openai.APIStatusError) as told:
        await client.audio.speech.create(**ASK, stream_format="sse" if events else "audio")
    assert (told.value.status_code, told.value.code, told.value.param) == (status, code, param)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("error", [StageFailed("voicebox", "The voicebox died."), ZeroDivisionError("secret")])
async def test_half_a_file_is_never_taken_for_a_whole_one(client: AsyncOpenAI, cascade, error: Exception) -> None:
    cascade.error, cascade.fails_after = error, 3
    with pytest.raises(openai.APIConnectionError):
        await client.audio.speech.create(**ASK, response_format="wav")


@pytest.mark.parametrize(
    ("error", "code"), [(StageFailed("voicebox", "The voicebox died."), "stage_failed"), (ZeroDivisionError("x"), None)]
)
async def test_a_failure_in_the_middle_of_events_is_the_last_one(
    http: ClientSession, url: str, cascade, error: Exception, code: str | None
) -> None:
    cascade.error, cascade.fails_after = error, 3
    async with http.post(f"{url}/v1/audio/speech", json={**ASK, "stream_format": "sse"}) as reply:
        assert reply.status == 200
        events = [json.loads(event[6:]) for event in (await reply.text()).strip().split("\n\n")]
    assert (events[-1]["type"], events[-1]["error"]["code"]) == ("error", code)
    assert all(event["type"] == "speech.audio.delta" for event in events[:-1])


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("before", [True, False])
async def test_hanging_up_cancels(http: ClientSession, url: str, cascade, before: bool, events: bool) -> None:
    cascade.pause_s = 0.02
    if before:
        cascade.gate.clear()
    body = {**ASK, "input": "word " * 800, "stream_format": "sse" if events else "audio"}
    asked = asyncio.create_task(http.post(f"{url}/v1/audio/speech", json=body))
    async with asyncio.timeout(10):
        if before:
            await cascade.asked.wait()
            asked.cancel()
        else:
            reply = await asked
            await reply.content.readany()
            reply.close()
        await cascade.responses[0].cancelled.wait()
    assert not cascade.responses[0].ended


async def test_a_reader_that_stands_still_is_let_go(cascade, serve) -> None:
    url = await serve(FaceSettings(write_timeout_s=0.2))
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1_024)
    body = json.dumps({**ASK, "input": "a " * 2_048, "response_format": "wav"}).encode()
    writer.write(
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    async with asyncio.timeout(20):
        await cascade.asked.wait()
        await cascade.responses[0].cancelled.wait()
    assert not cascade.responses[0].ended
    writer.close()


async def test_many_at_once_keep_apart(client: AsyncOpenAI) -> None:
    async def seconds(words: int) -> float:
        reply = await client.audio.speech.create(**{**ASK, "input": "word " * words}, response_format="flac")
        sound, rate = decoded(reply.content, "flac")
        return sound.size / rate

    assert await asyncio.gather(*(seconds(words) for words in range(1, 13))) == pytest.approx(
        [0.2 * words for words in range(1, 13)]
    )


async def test_the_server_going_down_breaks_it_off(http: ClientSession, url: str, cascade) -> None:
    cascade.pause_s = 0.02
    async with http.post(f"{url}/v1/audio/speech", json={**ASK, "input": "word " * 800}) as reply:
        await reply.content.readany()
        cascade.responses[0].cancel()
        with pytest.raises(aiohttp.ClientError):
            await reply.read()
