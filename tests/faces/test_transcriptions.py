"""``/v1/audio/transcriptions`` by OpenAI's own client and by hand, with the real ears and people who really speak."""

from __future__ import annotations

import asyncio
import io
import json
import re
import wave
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import ClientSession, FormData
from openai import APIStatusError, AsyncOpenAI
from openai.types.audio import TranscriptionVerbose

from tests.cascade.listening import error_rate
from tests.faces.conftest import FakeCascade
from tests.human_speech import recording
from voicechat.assemble import AssembledPaths
from voicechat.contract.errors import StageFailed
from voicechat.contract.hearing import PLAIN, EarsFacts, HeardToken, HeardWord, HearingOptions, Transcription
from voicechat.contract.sound import PCM_RATE, EarsPcm
from voicechat.faces.app import FaceSettings
from voicechat.faces.transcriptions import FileLimits
from voicechat.media.detectors import Detectors
from voicechat.models.ears.whisper import Ears

TWO_CITIES = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of light, "
    "it was the season of darkness, it was the spring of hope, it was the winter of despair,"
)
"""What the recording begins with (Dickens, A Tale of Two Cities)."""
MANY = EarsFacts("whisper-many", ("en", "de"), translates=True, words=True)


@dataclass
class HearingCascade(FakeCascade):
    """Hears by ``ears``, or what ``says`` gives; keeps how it was asked."""

    ears: Ears | None = None
    says: Callable[[EarsPcm], Transcription] | None = None
    asked_for: list[tuple[float, HearingOptions]] = field(default_factory=list)
    failure: Exception | None = None

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        self.asked_for.append((len(pcm) / 16_000, options))
        if self.failure is not None:
            raise self.failure
        if self.says is not None:
            return self.says(pcm)
        assert self.ears is not None
        return await asyncio.to_thread(self.ears.hear, pcm, options)


def wav(pcm: np.ndarray, rate: int = PCM_RATE) -> bytes:
    """An int16 mono file."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.astype("<i2").tobytes())
    return data.getvalue()


def encoded(pcm: np.ndarray, container: str, codec: str, rate: int) -> bytes:
    """The sound in another container, by FFmpeg."""
    data = io.BytesIO()
    with av.open(data, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate)
        frame = av.AudioFrame.from_ndarray(pcm[None].astype(np.int16), format="s16", layout="mono")
        frame.sample_rate = PCM_RATE
        for each in av.AudioResampler(format=stream.format.name, layout="mono", rate=rate).resample(frame):
            each.pts = None
            out.mux(stream.encode(each))
        out.mux(stream.encode(None))
    return data.getvalue()


@pytest.fixture(scope="module")
def human() -> np.ndarray:
    return recording(24.0)


@pytest.fixture(scope="module")
def ears(models: AssembledPaths) -> Ears:
    return Ears(str(models.ears), threads=1, beam_size=1)


@pytest.fixture(scope="module")
def detectors(models: AssembledPaths) -> Detectors:
    return Detectors.load(models.detectors)


@pytest.fixture
def hearing(ears: Ears) -> HearingCascade:
    made = HearingCascade(ears=ears)
    made.model = replace(made.model, ears=ears.facts)
    return made


@pytest.fixture
def cascade(hearing: HearingCascade) -> FakeCascade:
    return hearing


@pytest_asyncio.fixture
async def url(serve: Callable[..., Awaitable[str]], detectors: Detectors) -> str:
    limits = FileLimits(max_bytes=4 << 20, max_seconds=60.0, disconnect_poll_s=0.02)
    return await serve(FaceSettings(api_keys=("sk-1",), detectors=detectors, files=limits))


@pytest_asyncio.fixture
async def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0)


def fixed(text: str) -> Callable[[EarsPcm], Transcription]:
    """Always the same, its words half a second each."""
    words = tuple(HeardWord(word, index / 2, index / 2 + 0.4) for index, word in enumerate(text.split()))
    tokens = tuple(HeardToken(f" {word}", -0.25) for word in text.split())
    return lambda pcm: Transcription(text, "en", -0.3, 0.01, words, tokens, len(words))


def clock(text: str) -> float:
    hours, minutes, seconds = text.replace(",", ".").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


async def test_a_person_in_every_format(client: AsyncOpenAI, human: np.ndarray, hearing: HearingCascade) -> None:
    """The words are right, in order and in time; what was really said in a row again and again stays."""
    ask: Any = client.audio.transcriptions.create
    data = wav(human)
    verbose: TranscriptionVerbose = await ask(
        file=("a.wav", data),
        model="whisper-1",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        language="en",
    )
    assert error_rate(TWO_CITIES, " ".join(verbose.text.split()[: len(TWO_CITIES.split())])) < 0.15
    assert verbose.language == "english"
    assert verbose.duration == pytest.approx(24.0, abs=0.05)
    assert verbose.usage is not None and verbose.usage.seconds == 24
    assert verbose.words is not None and verbose.segments is not None
    assert [word.word for word in verbose.words] == verbose.text.split()
    starts = [word.start for word in verbose.words]
    assert starts == sorted(starts)
    assert all(word.start <= word.end <= 24.1 for word in verbose.words)
    assert " ".join(segment.text for segment in verbose.segments) == verbose.text
    assert all(one.end <= two.start + 0.01 for one, two in zip(verbose.segments, verbose.segments[1:], strict=False))
    assert (await ask(file=("a.wav", data), model="whisper-1", response_format="text")).strip() == verbose.text
    srt = await ask(file=("a.wav", data), model="whisper-1", response_format="srt")
    blocks = [block.split("\n") for block in srt.strip().split("\n\n")]
    assert [block[0] for block in blocks] == [str(number) for number in range(1, len(blocks) + 1)]
    times = [[clock(side) for side in block[1].split(" --> ")] for block in blocks]
    assert times == [[segment.start, segment.end] for segment in verbose.segments]
    assert " ".join(block[2] for block in blocks) == verbose.text
    vtt = await ask(file=("a.wav", data), model="whisper-1", response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n")
    assert re.findall(r"^(\S+) --> ", vtt, re.M) == [block[1].split(" ")[0].replace(",", ".") for block in blocks]
    assert all(options.background for _, options in hearing.asked_for)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("mp3", "mp3", 24_000),
        ("ogg", "libopus", 48_000),
        ("mp4", "aac", 44_100),
        ("webm", "libopus", 48_000),
        ("flac", "flac", 24_000),
    ],
)
async def test_every_container(
    client: AsyncOpenAI, human: np.ndarray, container: str, codec: str, rate: int, hearing: HearingCascade
) -> None:
    data = encoded(human[: 5 * PCM_RATE], container, codec, rate)
    heard = await client.audio.transcriptions.create(file=(f"a.{container}", data), model="gpt-4o-transcribe")
    assert "best of times" in heard.text
    usage: Any = heard.usage
    assert usage.type == "tokens"
    assert usage.input_tokens == pytest.approx(50, abs=2)
    assert usage.output_tokens >= len(heard.text.split())
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_a_stream_of_pieces(client: AsyncOpenAI, human: np.ndarray, hearing: HearingCascade) -> None:
    pause = np.zeros(3 * PCM_RATE, np.int16)
    data = wav(np.concatenate([human[: 5 * PCM_RATE], pause, human[5 * PCM_RATE : 11 * PCM_RATE]]))
    stream = await client.audio.transcriptions.create(
        file=("a.wav", data), model="gpt-4o-mini-transcribe", stream=True, include=["logprobs"]
    )
    events = [event async for event in stream]
    deltas, done = events[:-1], events[-1]
    assert len(deltas) >= 2 and all(event.type == "transcript.text.delta" for event in deltas)
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text  # type: ignore[union-attr]
    assert done.logprobs is not None and all(each.logprob <= 0 for each in done.logprobs)  # type: ignore[operator]
    assert "".join(each.token or "" for each in done.logprobs).split() == done.text.split()
    assert done.usage is not None and done.usage.output_tokens >= len(done.text.split())


async def test_silence_and_sounds_that_nobody_says(client: AsyncOpenAI, hearing: HearingCascade) -> None:
    """Silence, a hum, a telephone's tones, chords: no words, and most of it never reaches the ears."""
    t = np.arange(4 * PCM_RATE) / PCM_RATE
    hum = 3000 * np.sin(2 * np.pi * 50 * t) + 1500 * np.sin(2 * np.pi * 150 * t)
    tones = (np.sin(2 * np.pi * 770 * t) + np.sin(2 * np.pi * 1336 * t)) * 6000 * (t % 0.5 < 0.2)
    chords = sum(np.sin(2 * np.pi * hertz * t) for hertz in (261.6, 329.6, 392.0)) * 3000 * np.exp(-2 * (t % 1))
    sound = np.concatenate(
        [np.zeros(4 * PCM_RATE), hum, tones, chords, np.random.default_rng(1).normal(0, 300, len(t))]
    )
    heard = await client.audio.transcriptions.create(file=("a.wav", wav(sound)), model="whisper-1")
    assert heard.text == ""
    assert heard.usage is not None and heard.usage.type == "duration" and heard.usage.seconds == 20
    for name, empty in (("srt", ""), ("vtt", "WEBVTT\n\n"), ("text", "\n")):
        ask: Any = client.audio.transcriptions.create
        assert await ask(file=("a.wav", wav(hum)), model="whisper-1", response_format=name) == empty


async def test_pieces_are_short_while_somebody_converses(
    client: AsyncOpenAI, human: np.ndarray, hearing: HearingCascade, served_app: Any
) -> None:
    hearing.says = fixed("so")
    await client.audio.transcriptions.create(file=("a.wav", wav(human)), model="whisper-1")
    assert max(seconds for seconds, _ in hearing.asked_for) > 12
    hearing.asked_for.clear()
    from voicechat.faces.app import METERED

    served_app()[METERED].live += 1
    await client.audio.transcriptions.create(file=("a.wav", wav(human)), model="whisper-1")
    assert max(seconds for seconds, _ in hearing.asked_for) <= 9.1


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "whisper-9"}, 404, "model"),
        ({}, 400, "model"),
        ({"model": "whisper-1", "response_format": "xml"}, 400, "response_format"),
        ({"model": "whisper-1", "timestamp_granularities[]": "word"}, 400, "timestamp_granularities"),
        (
            {"model": "whisper-1", "timestamp_granularities[]": "day", "response_format": "verbose_json"},
            400,
            "timestamp_granularities",
        ),
        ({"model": "whisper-1", "temperature": "1.5"}, 400, "temperature"),
        ({"model": "whisper-1", "temperature": "nan"}, 400, "temperature"),
        ({"model": "whisper-1", "language": "de"}, 400, "language"),
        ({"model": "whisper-1", "language": "klingon!"}, 400, "language"),
        ({"model": "whisper-1", "stream": "maybe"}, 400, "stream"),
        ({"model": "whisper-1", "stream": "true", "response_format": "srt"}, 400, "stream"),
        ({"model": "whisper-1", "include[]": "logprobs", "response_format": "text"}, 400, "include"),
    ],
)
async def test_wrong_fields(url: str, fields: dict[str, str], status: int, param: str) -> None:
    form = FormData()
    for name, value in fields.items():
        form.add_field(name, value)
    form.add_field("file", wav(np.zeros(2400)), filename="a.wav")
    async with ClientSession(headers={"Authorization": "Bearer sk-1"}) as session:
        async with session.post(f"{url}/v1/audio/transcriptions", data=form) as reply:
            body = await reply.json()
    assert (reply.status, body["error"]["param"]) == (status, param)
    assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 400, "no_audio"),
        (b"what is this?" * 100, 400, "unreadable"),
        (b"#EXTM3U\nhttp://127.0.0.1/a.wav\n" * 20, 400, "unreadable"),
        (wav(np.zeros(61 * 8000), 8000), 413, "too_large"),
        (bytes(5 << 20), 413, "too_large"),
    ],
)
async def test_wrong_files(client: AsyncOpenAI, data: bytes, status: int, code: str) -> None:
    with pytest.raises(APIStatusError) as caught:
        await client.audio.transcriptions.create(file=("a.wav", data), model="whisper-1")
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (status, code, "file")  # type: ignore[attr-defined]


async def test_the_ways_of_others(url: str, hearing: HearingCascade) -> None:
    """open-webui sends file and model with a name of its own kind, and a language; a Wyoming bridge all fields as
    text, with a temperature of 0 and an empty prompt. What is unknown is passed over."""
    hearing.says = fixed("turn the light on")
    sound = wav(recording(3.0))
    async with ClientSession(headers={"Authorization": "Bearer sk-1"}) as session:
        for fields in (
            {"model": "whisper-1", "language": "en"},
            {"model": "fake-voice", "language": "en-US", "response_format": "json", "temperature": "0", "prompt": ""},
            {"model": hearing.model.ears.name, "vad_filter": "true", "chunking_strategy": "auto"},
        ):
            form = FormData(fields)
            form.add_field("file", sound, filename="speech.wav", content_type="audio/wav")
            async with session.post(f"{url}/v1/audio/transcriptions", data=form) as reply:
                assert (reply.status, (await reply.json())["text"]) == (200, "turn the light on")
        async with session.post(f"{url}/v1/audio/transcriptions", json={"model": "whisper-1"}) as reply:
            assert reply.status == 415


async def test_translations(client: AsyncOpenAI, hearing: HearingCascade) -> None:
    """By multilingual ears; others say that they can't."""
    data = wav(recording(3.0))
    with pytest.raises(APIStatusError, match="don't translate") as caught:
        await client.audio.translations.create(file=("a.wav", data), model="whisper-1")
    assert caught.value.status_code == 400
    hearing.model = replace(hearing.model, ears=MANY)
    hearing.says = fixed("good morning")
    verbose: Any = await client.audio.translations.create(
        file=("a.wav", data), model="whisper-1", response_format="verbose_json", prompt="names", temperature=0.5
    )
    assert (verbose.text, verbose.segments[0].text) == ("good morning", "good morning")
    (_, options), *_ = hearing.asked_for
    assert (options.translate, options.prompt, options.temperature) == (True, "names", 0.5)
    await client.audio.transcriptions.create(file=("a.wav", data), model="whisper-1", language="de")
    assert hearing.asked_for[-1][1].language == "de"


async def test_failures(client: AsyncOpenAI, url: str, hearing: HearingCascade, tmp_path: Path) -> None:
    """One clear error before the first piece, as the last event behind it; places are free again."""
    hearing.failure = StageFailed("ears", "The ears died.")
    data = wav(recording(3.0))
    for stream in (False, True):
        with pytest.raises(APIStatusError) as caught:
            await client.audio.transcriptions.create(file=("a.wav", data), model="whisper-1", stream=stream)
        assert caught.value.status_code == 500
    hearing.failure = None
    count = 0

    def once(pcm: EarsPcm) -> Transcription:
        nonlocal count
        count += 1
        if count > 1:
            raise StageFailed("ears", "The ears died.")
        return Transcription("first")

    hearing.says = once
    pause = np.zeros(3 * PCM_RATE, np.int16)
    two = wav(np.concatenate([recording(5.0), pause, recording(5.0)]))
    form = FormData({"model": "whisper-1", "stream": "true"})
    form.add_field("file", two, filename="a.wav")
    async with ClientSession(headers={"Authorization": "Bearer sk-1"}) as session:
        async with session.post(f"{url}/v1/audio/transcriptions", data=form) as reply:
            lines = [line for line in (await reply.text()).split("\n\n") if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event["type"] for event in events] == ["transcript.text.delta", "error"]
    hearing.says = fixed("again")
    assert "again" in (await client.audio.transcriptions.create(file=("a.wav", data), model="whisper-1")).text


async def test_limits_and_scopes_of_keys(serve: Callable[..., Awaitable[str]], hearing: HearingCascade) -> None:
    """A key for speech alone may not; sound is paid for, pauses included, and debt refuses."""
    from voicechat.faces.keys import KeyLimits

    hearing.says = fixed("so")
    url = await serve(FaceSettings(key_limits=KeyLimits(audio_seconds_per_minute=5), api_keys=("sk-1",)))
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0)
    await client.audio.transcriptions.create(file=("a.wav", wav(recording(10.0))), model="whisper-1")
    with pytest.raises(APIStatusError) as caught:
        await client.audio.transcriptions.create(file=("a.wav", wav(recording(1.0))), model="whisper-1")
    assert caught.value.status_code == 429
    with pytest.raises(APIStatusError) as caught:
        await client.with_options(api_key="sk-2").audio.transcriptions.create(
            file=("a.wav", wav(recording(1.0))), model="whisper-1"
        )
    assert caught.value.status_code == 401
