"""The ``openai`` package, unmodified, talks with the chat face: whole replies."""

from __future__ import annotations

import asyncio
import base64
import io

import av
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from voicechat.contract.errors import NotReady, Overloaded, StageFailed
from voicechat.contract.events import FinishReason
from voicechat.faces.app import FaceSettings
from voicechat.media.decode import decode_audio
from voicechat.media.encode import encode
from voicechat.media.wav import encode_wav

MODEL = "fake-voice"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "ann", "format": "wav"}}


def ask(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def tone(hertz: float = 500.0, seconds: float = 1.0, rate: int = 24_000) -> np.ndarray:
    return np.rint(16_384 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.int16)


def sound_part(data: bytes, fmt: str) -> dict:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": fmt}}


def checked(completion: ChatCompletion) -> ChatCompletion:
    """The client parses without validating; this does what it leaves out."""
    return ChatCompletion.model_validate(completion.model_dump(warnings="error"), strict=True)


async def test_text(client: AsyncOpenAI, cascade) -> None:
    reply = checked(await client.chat.completions.create(model=MODEL, messages=ask("Good morning")))
    choice = reply.choices[0]
    assert choice.message.content == "You said: Good morning"
    assert choice.message.role == "assistant"
    assert choice.message.audio is None
    assert choice.finish_reason == "stop"
    assert reply.id.startswith("chatcmpl-")
    assert reply.system_fingerprint.startswith("fp_")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (12, 4, 16)
    assert reply.usage.prompt_tokens_details.cached_tokens == 3
    assert reply.usage.completion_tokens_details.audio_tokens == 0
    request = cascade.responses[0].request
    assert request.audio is False
    assert request.voice is None
    assert request.latency_first is False


@pytest.mark.parametrize("fmt", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
async def test_speech_in_every_format(client: AsyncOpenAI, cascade, fmt: str) -> None:
    cascade.reply = "one two three four five six seven"
    reply = checked(
        await client.chat.completions.create(
            model=MODEL,
            messages=ask("Count"),
            modalities=["text", "audio"],
            audio={"voice": "bob", "format": fmt},
        )
    )
    message = reply.choices[0].message
    assert message.content is None
    assert message.audio.transcript == cascade.reply
    assert message.audio.id.startswith("audio_")
    assert message.audio.expires_at > reply.created + 60
    data = base64.b64decode(message.audio.data, validate=True)
    if fmt == "pcm16":
        sound, rate = np.frombuffer(data, "<i2") / 32768, 24_000
    else:
        with av.open(io.BytesIO(data)) as container:
            frames = list(container.decode(audio=0))
        rate = frames[0].sample_rate
        sound = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
        sound = sound / 32768 if sound.dtype == np.int16 else sound
    assert sound.size / rate == pytest.approx(7 * 0.2, abs=0.1)
    middle = sound[rate // 4 : -rate // 4]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.25, rel=0.05)
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(middle.size)))
    assert np.argmax(spectrum) * rate / middle.size == pytest.approx(400, abs=2)
    assert reply.usage.completion_tokens_details.audio_tokens == 35
    assert reply.usage.completion_tokens_details.text_tokens == 7
    assert reply.usage.completion_tokens == 42
    assert cascade.responses[0].request.voice == "bob"


@pytest.mark.parametrize("fmt", ["wav", "mp3"])
async def test_a_spoken_question_arrives_whole(client: AsyncOpenAI, fmt: str) -> None:
    content = [{"type": "text", "text": "What is this?"}, sound_part(encode(tone(), fmt), fmt)]
    reply = checked(await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}]))
    assert reply.choices[0].message.content == "You said: What is this? 1.0s 500Hz 0.35"
    assert reply.usage.prompt_tokens_details.audio_tokens == pytest.approx(25, abs=1)


async def test_twenty_five_mebibytes_of_sound(serve, cascade) -> None:
    url = await serve(FaceSettings(max_audio_seconds=900))
    data = encode_wav(tone(seconds=(25 * 1024 * 1024 - 44) / 2 / 24_000), 24_000)
    assert len(data) > 25 * 1024 * 1024 - 100
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": [sound_part(data, "wav")]}]
        reply = await client.chat.completions.create(model=MODEL, messages=messages)
        assert reply.choices[0].message.content == "You said: 546.1s 500Hz 0.35"
        messages = [{"role": "user", "content": [sound_part(data + bytes(1_000), "wav")]}]
        with pytest.raises(openai.BadRequestError, match="larger than 26214400 bytes"):
            await client.chat.completions.create(model=MODEL, messages=messages)
        messages = [{"role": "user", "content": [sound_part(data * 2, "wav")]}]
        with pytest.raises(openai.APIStatusError) as error:
            await client.chat.completions.create(model=MODEL, messages=messages)
        assert error.value.status_code == 413
        assert error.value.code == "request_too_large"


async def test_every_role_and_all_sampling_fields(client: AsyncOpenAI, cascade) -> None:
    await client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": "Hello", "name": "Eve"},
            {"role": "assistant", "content": "Hi!"},
            {"role": "user", "content": [{"type": "text", "text": "How"}, {"type": "text", "text": "are you?"}]},
        ],
        max_completion_tokens=50,
        temperature=0.5,
        top_p=0,
        seed=-7,
        stop=["x", "y"],
        n=1,
        user="eve",
        store=True,
        metadata={"a": "b"},
        frequency_penalty=0,
        presence_penalty=0.0,
        logprobs=False,
        response_format={"type": "text"},
        service_tier="auto",
        extra_body={"latency_first": True},
    )
    request = cascade.responses[0].request
    assert [(m.role, [p.text for p in m.parts]) for m in request.messages] == [
        ("system", ["Be brief."]),
        ("system", ["Be kind."]),
        ("user", ["Hello"]),
        ("assistant", ["Hi!"]),
        ("user", ["How", "are you?"]),
    ]
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.stop) == (50, 0.5, -7, ("x", "y"))
    assert 0 < sampling.top_p < 1e-3
    assert request.latency_first is True


async def test_null_means_not_given(client: AsyncOpenAI, cascade) -> None:
    nothing = dict.fromkeys(
        ["temperature", "stop", "modalities", "audio", "tools", "seed", "stream", "n", "logit_bias"]
    )
    await client.chat.completions.create(model=MODEL, messages=ask("Hello"), extra_body=nothing)
    assert cascade.responses[0].request.sampling.temperature is None


async def test_a_stop_sequence_as_a_string(client: AsyncOpenAI, cascade) -> None:
    cascade.reply = "one two STOP three"
    reply = await client.chat.completions.create(model=MODEL, messages=ask("x"), stop=" STOP")
    assert reply.choices[0].message.content == "one two"


async def test_a_short_limit_is_told(client: AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(model=MODEL, messages=ask("a b c d"), max_tokens=2)
    assert reply.choices[0].finish_reason == FinishReason.LENGTH.value
    assert reply.choices[0].message.content == "You said:"


async def test_metadata_comes_back(client: AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(model=MODEL, messages=ask("x"), metadata={"room": "7"})
    assert checked(reply).metadata == {"room": "7"}


async def test_a_conversation_goes_on_from_an_audio_id(client: AsyncOpenAI, cascade) -> None:
    cascade.reply = "It is seven."
    first = await client.chat.completions.create(model=MODEL, messages=ask("What time is it?"), **SPOKEN)
    by_id = {"role": "assistant", "audio": {"id": first.choices[0].message.audio.id}}
    for earlier in (by_id, first.choices[0].message):
        await client.chat.completions.create(
            model=MODEL, messages=[*ask("What time is it?"), earlier, *ask("Sure?")], **SPOKEN
        )
        message = cascade.responses[-1].request.messages[1]
        assert message.role == "assistant"
        assert [part.text for part in message.parts] == ["It is seven."]


async def test_an_unknown_audio_id_is_named(client: AsyncOpenAI) -> None:
    messages = [*ask("x"), {"role": "assistant", "audio": {"id": "audio_nope"}}, *ask("y")]
    with pytest.raises(openai.BadRequestError) as error:
        await client.chat.completions.create(model=MODEL, messages=messages)
    assert error.value.param == "messages[1].audio.id"
    assert error.value.code == "audio_not_found"


async def test_details_are_an_extension(client: AsyncOpenAI) -> None:
    content = [sound_part(encode(tone(), "wav"), "wav")]
    reply = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], extra_body={"include_details": True}
    )
    details = checked(reply).model_extra["details"]
    assert details["heard"] == ["1.0s 500Hz 0.35"]
    assert details["times"]["done"] == 0.5
    assert details["usage"]["audio_in_seconds"] == 1.0


async def test_an_empty_reply_is_a_reply(client: AsyncOpenAI, cascade) -> None:
    cascade.reply = " "
    for fmt in ("wav", "mp3", "flac", "opus", "aac", "pcm16"):
        reply = checked(
            await client.chat.completions.create(
                model=MODEL, messages=ask("x"), modalities=["audio"], audio={"voice": "ann", "format": fmt}
            )
        )
        assert reply.choices[0].message.audio.transcript == ""


@pytest.mark.parametrize(
    ("failure", "status", "code", "kind"),
    [
        (Overloaded("Busy."), 429, "rate_limit_exceeded", openai.RateLimitError),
        (NotReady("Warming up."), 503, "not_ready", openai.InternalServerError),
        (StageFailed("talker", "The talker died."), 500, "stage_failed", openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("spoken", [False, True])
async def test_failures(
    client: AsyncOpenAI, cascade, failure: Exception, status: int, code: str, kind: type, stream: bool, spoken: bool
) -> None:
    cascade.error = failure
    options = {"modalities": ["text", "audio"], "audio": {"voice": "ann", "format": "pcm16"}} if spoken else {}
    with pytest.raises(kind) as error:
        await client.chat.completions.create(model=MODEL, messages=ask("x"), stream=stream, **options)
    assert error.value.status_code == status
    assert error.value.code == code
    assert error.value.type == ("requests" if status == 429 else "server_error")
    assert error.value.body["message"] == str(failure)
    assert ("retry-after" in error.value.response.headers) == (status in (429, 503))


async def test_a_failure_after_the_first_words(client: AsyncOpenAI, cascade) -> None:
    cascade.error, cascade.fails_after = StageFailed("voicebox", "The voicebox died."), 4
    with pytest.raises(openai.InternalServerError, match="The voicebox died"):
        await client.chat.completions.create(model=MODEL, messages=ask("a b c d"), **SPOKEN)


async def test_hanging_up_cancels(client: AsyncOpenAI, cascade) -> None:
    cascade.gate.clear()
    asked = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=ask("x"), **SPOKEN))
    async with asyncio.timeout(10):
        await cascade.asked.wait()
        asked.cancel()
        await cascade.responses[0].cancelled.wait()


async def test_many_at_once(client: AsyncOpenAI) -> None:
    async def one(number: int) -> None:
        reply = await client.chat.completions.create(model=MODEL, messages=ask(f"number {number}"), **SPOKEN)
        audio = reply.choices[0].message.audio
        assert audio.transcript == f"You said: number {number}"
        assert decode_audio(base64.b64decode(audio.data), "wav").size == 4 * 16_000 // 5

    await asyncio.gather(*(one(number) for number in range(40)))


async def test_the_blocking_client(url: str) -> None:
    def talk() -> str:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            reply = client.chat.completions.create(model=MODEL, messages=ask("Hi"), **SPOKEN)
            return reply.choices[0].message.audio.transcript

    assert await asyncio.to_thread(talk) == "You said: Hi"
