"""The unmodified ``openai`` client against a running server with its real model.

``real_server`` is the server's base URL, without ``/v1``. What was said is checked with the server's own ears: they
are Whisper tiny.en, which has nothing to do with the Talker and the VoiceBox that made the sound.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import av
import numpy as np
import openai
import pytest
from jiwer import wer
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from whisper_normalizer.english import EnglishTextNormalizer

from voicechat.media.decode import decode_audio
from voicechat.media.resample import resample, to_float, to_pcm
from voicechat.media.wav import encode_wav

QUESTIONS = [
    "What is the capital of France?",
    "Tell me one fact about the moon.",
    "How many days are there in a week?",
]
MAX_WER = 0.25
"""Of one short answer; the ears themselves mishear a word now and then."""

Json = dict[str, Any]
Listen = Callable[[bytes], Awaitable[str]]
normalize = EnglishTextNormalizer()


def user(content: str | list[Json]) -> list[Json]:
    return [{"role": "user", "content": content}]


def sound_part(data: bytes, fmt: str = "wav") -> Json:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": fmt}}


def error_rate(shown: str, heard: str) -> float:
    return float(wer(normalize(shown), normalize(heard)))


@pytest.fixture
async def real(real_server: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{real_server}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
async def model(real: AsyncOpenAI) -> Json:
    """Name and a voice of the served model."""
    served = (await real.models.list()).data[0]
    assert served.model_extra is not None
    return {"model": served.id, "voice": served.model_extra["default_voice"]}


@pytest.fixture
def listen(real: AsyncOpenAI, model: Json) -> Listen:
    """What the ears make of a WAV."""

    async def hear(wav: bytes) -> str:
        reply = await real.chat.completions.create(
            model=model["model"],
            messages=user([sound_part(wav)]),
            max_tokens=1,
            extra_body={"include_details": True},
        )
        assert reply.model_extra is not None
        return str(reply.model_extra["details"]["heard"][0])

    return hear


def spoken(model: Json, fmt: str) -> Json:
    return {
        "model": model["model"],
        "modalities": ["text", "audio"],
        "audio": {"voice": model["voice"], "format": fmt},
        "temperature": 0,
        "max_tokens": 40,
    }


def checked(reply: ChatCompletion) -> ChatCompletion:
    return ChatCompletion.model_validate(reply.model_dump(warnings="error"), strict=True)


async def test_an_answer_in_text(real: AsyncOpenAI, model: Json) -> None:
    reply = checked(
        await real.chat.completions.create(model=model["model"], messages=user(QUESTIONS[0]), temperature=0)
    )
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens > 5
    assert 0 < reply.usage.completion_tokens < 257


async def test_what_is_heard_is_what_is_shown(real: AsyncOpenAI, model: Json, listen: Listen) -> None:
    rates = []
    for question in QUESTIONS:
        reply = checked(await real.chat.completions.create(messages=user(question), **spoken(model, "wav")))
        audio = reply.choices[0].message.audio
        assert audio is not None
        wav = base64.b64decode(audio.data)
        sound = decode_audio(wav, "wav")
        assert sound.size > 0.03 * 16_000 * len(audio.transcript)
        assert 0.02 < np.sqrt(np.mean(sound**2)) < 0.4
        rates.append(error_rate(audio.transcript, await listen(wav)))
    assert np.mean(rates) <= MAX_WER, rates


@pytest.mark.parametrize("fmt", ["mp3", "flac", "opus", "aac", "pcm16"])
async def test_every_format_is_understood(real: AsyncOpenAI, model: Json, listen: Listen, fmt: str) -> None:
    reply = checked(await real.chat.completions.create(messages=user(QUESTIONS[2]), **spoken(model, fmt)))
    audio = reply.choices[0].message.audio
    assert audio is not None
    data = base64.b64decode(audio.data)
    if fmt == "pcm16":
        sound, rate = np.frombuffer(data, "<i2").astype(np.int16), 24_000
    else:
        with av.open(io.BytesIO(data)) as container:
            frames = list(container.decode(audio=0))
        rate = frames[0].sample_rate
        sound = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
        sound = sound if sound.dtype == np.int16 else to_pcm(sound.astype(np.float32))
    wav = encode_wav(to_pcm(resample(to_float(sound), rate, 16_000)), 16_000)
    assert error_rate(audio.transcript, await listen(wav)) <= MAX_WER


async def test_a_stream_is_heard_as_shown(real: AsyncOpenAI, model: Json, listen: Listen) -> None:
    stream = await real.chat.completions.create(
        messages=user(QUESTIONS[0]), stream=True, stream_options={"include_usage": True}, **spoken(model, "pcm16")
    )
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(warnings="error"), strict=True)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    audios = [delta.audio for delta in deltas if delta.audio is not None]
    assert deltas[0].role == "assistant"
    assert audios[0].id
    assert audios[-1].expires_at
    transcript = "".join(audio.transcript or "" for audio in audios)
    pieces = [np.frombuffer(base64.b64decode(audio.data), "<i2") for audio in audios if audio.data]
    assert len(pieces) > 1
    wav = encode_wav(np.concatenate(pieces).astype(np.int16), 24_000)
    assert error_rate(transcript, await listen(wav)) <= MAX_WER
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.audio_tokens == pytest.approx(sum(p.size for p in pieces) / 960, abs=1)


async def test_stream_and_whole_agree(real: AsyncOpenAI, model: Json) -> None:
    whole = await real.chat.completions.create(messages=user(QUESTIONS[2]), **spoken(model, "pcm16"))
    stream = await real.chat.completions.create(messages=user(QUESTIONS[2]), stream=True, **spoken(model, "pcm16"))
    text = ""
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.audio:
            text += chunk.choices[0].delta.audio.transcript or ""
    assert whole.choices[0].message.audio is not None
    assert text == whole.choices[0].message.audio.transcript


def espeak(text: str) -> bytes:
    """A WAV in a voice that no stage was made from."""
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng is not installed")
    return subprocess.run(
        [program, "-v", "en-us", "-s", "140", "--stdout", text], capture_output=True, check=True
    ).stdout


def hibari(text: str) -> bytes:
    """A WAV by the Talker's teacher."""
    teacher = pytest.importorskip("hibari").Hibari()
    return encode_wav(to_pcm(teacher(text).astype(np.float32)), 24_000)


@pytest.mark.parametrize(
    ("speaker", "asked", "answer"),
    [(espeak, QUESTIONS[2], r"(?i)\b(seven|7)\b"), (hibari, QUESTIONS[0], "Paris")],
)
async def test_a_spoken_question_is_answered_aloud(
    real: AsyncOpenAI, model: Json, listen: Listen, speaker: Callable[[str], bytes], asked: str, answer: str
) -> None:
    question = speaker(asked)
    reply = checked(
        await real.chat.completions.create(
            messages=user([sound_part(question)]), extra_body={"include_details": True}, **spoken(model, "wav")
        )
    )
    assert reply.model_extra is not None
    assert error_rate(asked, reply.model_extra["details"]["heard"][0]) <= MAX_WER
    audio = reply.choices[0].message.audio
    assert audio is not None
    assert re.search(answer, audio.transcript)
    assert error_rate(audio.transcript, await listen(base64.b64decode(audio.data))) <= MAX_WER
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert (reply.usage.prompt_tokens_details.audio_tokens or 0) > 20


async def test_sampling_fields_are_honoured(real: AsyncOpenAI, model: Json) -> None:
    async def text(**options: Any) -> tuple[str, str]:
        reply = await real.chat.completions.create(
            model=model["model"], messages=user("Write a short poem about rain."), **options
        )
        return reply.choices[0].message.content or "", reply.choices[0].finish_reason

    assert (await text(max_tokens=5))[1] == "length"
    seeded = [await text(seed=5, temperature=1.0, max_tokens=30) for _ in range(2)]
    assert seeded[0] == seeded[1]
    others = {(await text(seed=seed, temperature=1.0, max_tokens=30))[0] for seed in range(4)}
    assert len(others) > 1
    plain = (await text(temperature=0, max_tokens=30))[0]
    # two tokens may be equally likely sooner or later, so only the beginning is compared
    assert plain.startswith((await text(top_p=0, temperature=1.0, max_tokens=12))[0])
    word = plain.split()[4]
    cut, reason = await text(temperature=0, max_tokens=30, stop=word)
    assert word not in cut
    assert plain.startswith(cut)
    assert reason == "stop"


async def test_a_conversation_refers_to_a_spoken_reply(real: AsyncOpenAI, model: Json) -> None:
    first = await real.chat.completions.create(messages=user(QUESTIONS[0]), **spoken(model, "wav"))
    assert first.choices[0].message.audio is not None
    earlier = {"role": "assistant", "audio": {"id": first.choices[0].message.audio.id}}
    reply = await real.chat.completions.create(
        model=model["model"],
        messages=[*user(QUESTIONS[0]), earlier, *user("Please repeat the name of that city.")],
        temperature=0,
    )
    assert "Paris" in (reply.choices[0].message.content or "")


async def test_bad_requests_are_named(real: AsyncOpenAI, model: Json) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError) as error:
        await real.chat.completions.create(model=model["model"], messages=user([picture]))
    assert error.value.param == "messages[0].content[0].image_url"
    with pytest.raises(openai.BadRequestError) as error:
        await real.chat.completions.create(model=model["model"], messages=user([sound_part(b"rubbish")]))
    assert error.value.param == "messages[0].content[0].input_audio.data"
    with pytest.raises(openai.BadRequestError):
        await real.chat.completions.create(model=model["model"], messages=user("word " * 50_000))


async def test_several_at_once(real: AsyncOpenAI, model: Json, listen: Listen) -> None:
    async def one(question: str) -> float:
        reply = await real.chat.completions.create(messages=user(question), **spoken(model, "wav"))
        audio = reply.choices[0].message.audio
        assert audio is not None
        return error_rate(audio.transcript, await listen(base64.b64decode(audio.data)))

    rates = await asyncio.gather(*(one(question) for question in QUESTIONS))
    assert np.mean(rates) <= MAX_WER


async def test_hanging_up_again_and_again_leaves_the_server_well(real: AsyncOpenAI, model: Json) -> None:
    for pieces in (0, 1, 3, 8, 2, 0, 5, 1, 4, 2):
        stream = await real.chat.completions.create(messages=user(QUESTIONS[1]), stream=True, **spoken(model, "pcm16"))
        for _ in range(pieces):
            await anext(stream)
        await stream.close()
    reply = await real.chat.completions.create(messages=user(QUESTIONS[0]), **spoken(model, "wav"))
    assert reply.choices[0].message.audio is not None
    assert "Paris" in reply.choices[0].message.audio.transcript
