"""``/v1/audio/speech`` with the real model: the unmodified ``openai`` client asks, Whisper tiny.en listens."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator

import av
import numpy as np
import pytest
from aiohttp import ClientSession
from jiwer import wer
from openai import AsyncOpenAI
from whisper_normalizer.english import EnglishTextNormalizer

from voicechat.media.resample import resample, to_float, to_pcm
from voicechat.media.wav import encode_wav

TEXT = "The early train to the north leaves at nine in the morning, and the ticket costs 25 dollars."
MAX_WER = 0.25
PADDING_S = {"mp3": 0.1, "opus": 0.001, "aac": 0.13, "flac": 0.0, "wav": 0.0, "pcm": 0.0}
ASK = {"model": "embedded-tiny", "voice": "alloy", "input": TEXT, "extra_body": {"seed": 3}}
normalize = EnglishTextNormalizer()


@pytest.fixture
async def real(real_server: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{real_server}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def decoded(data: bytes, fmt: str) -> np.ndarray:
    """float32 at 16 kHz, as FFmpeg reads the file."""
    if fmt == "pcm":
        sound, rate = np.frombuffer(data, "<i2").astype(np.int16), 24_000
    else:
        with av.open(io.BytesIO(data)) as container:
            frames = list(container.decode(audio=0))
        rate = frames[0].sample_rate
        sound = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
    return resample(to_float(sound) if sound.dtype == np.int16 else sound.astype(np.float32), rate, 16_000)


async def heard(real: AsyncOpenAI, sound: np.ndarray) -> str:
    """What the ears make of float32 at 16 kHz."""
    wav = base64.b64encode(encode_wav(to_pcm(sound), 16_000)).decode()
    reply = await real.chat.completions.create(
        model="embedded-tiny",
        messages=[
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}]}
        ],
        max_tokens=1,
        extra_body={"include_details": True},
    )
    assert reply.model_extra is not None
    return str(reply.model_extra["details"]["heard"][0])


def error_rate(text: str) -> float:
    return float(wer(normalize(TEXT), normalize(text)))


@pytest.fixture
async def seconds(real: AsyncOpenAI) -> float:
    """How long the text is, spoken with the seed."""
    return len((await real.audio.speech.create(**ASK, response_format="pcm")).content) / 2 / 24_000


@pytest.mark.parametrize("fmt", list(PADDING_S))
async def test_every_format_says_the_text(real: AsyncOpenAI, seconds: float, fmt: str) -> None:
    pieces: list[bytes] = []
    async with real.audio.speech.with_streaming_response.create(**ASK, response_format=fmt) as reply:
        pieces = [piece async for piece in reply.iter_bytes()]
    assert len(pieces) > 2
    sound = decoded(b"".join(pieces), fmt)
    assert 0.03 * len(TEXT) < seconds < 0.15 * len(TEXT)
    assert seconds - 0.001 <= sound.size / 16_000 <= seconds + PADDING_S[fmt]
    assert error_rate(await heard(real, sound)) <= MAX_WER


async def test_the_best_sound_and_events(real: AsyncOpenAI) -> None:
    body = {**ASK, "extra_body": {"seed": 3, "latency_first": False}}
    async with real.audio.speech.with_streaming_response.create(
        **body, response_format="wav", stream_format="sse"
    ) as reply:
        events = [json.loads(line[6:]) async for line in reply.iter_lines() if line.startswith("data: ")]
    sound = decoded(b"".join(base64.b64decode(event["audio"]) for event in events[:-1]), "wav")
    usage = events[-1]["usage"]
    assert usage["input_tokens"] == len(TEXT)
    assert sound.size / 16_000 == pytest.approx(usage["output_tokens"] * 0.04)
    assert error_rate(await heard(real, sound)) <= MAX_WER


@pytest.mark.parametrize("speed", [0.5, 2.0])
async def test_speed(real: AsyncOpenAI, seconds: float, speed: float) -> None:
    sound = decoded((await real.audio.speech.create(**ASK, response_format="flac", speed=speed)).content, "flac")
    assert sound.size / 16_000 == pytest.approx(seconds / speed, abs=0.001)
    if speed < 1:
        assert error_rate(await heard(real, sound)) <= MAX_WER


async def test_the_voices_are_those_of_the_model(real: AsyncOpenAI, real_server: str, http: ClientSession) -> None:
    served = (await real.models.list()).data[0].model_extra or {}
    async with http.get(f"{real_server}/v1/voices") as reply:
        voices = (await reply.json())["data"]
    assert {voice["id"] for voice in voices} == set(served["voices"])
    assert [voice["id"] for voice in voices if voice["default"]] == [served["default_voice"]]


async def test_those_who_hang_up_leave_their_places(real_server: str, http: ClientSession) -> None:
    """More requests than there are slots, all dropped at their first sound: the next one is served at once."""
    body = {"model": "embedded-tiny", "voice": "alloy", "input": f"{TEXT} " * 20, "response_format": "wav"}
    for _ in range(8):
        async with http.post(f"{real_server}/v1/audio/speech", json=body) as reply:
            assert reply.status == 200
            await reply.content.readexactly(44)
            reply.close()
    async with asyncio.timeout(30):
        while (slots := await _slots(http, real_server))["free"] < slots["total"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _slots(http: ClientSession, url: str) -> dict[str, int]:
    async with http.get(f"{url}/v1/stats") as reply:
        slots: dict[str, int] = (await reply.json())["slots"]
        return slots
