"""A cascade without models for the faces' tests, served on a loopback port; and sessions over other doubles."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web
from openai import AsyncOpenAI

from tests.cascade_double import DoubleCascade
from tests.clients.recordings import spoken_answers  # noqa: F401
from tests.faces.webrtc_bench import Bench, close
from tests.ws_server import Server, serving
from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import InvalidRequest
from voicechat.contract.events import AudioDelta, Event, Finished, FinishReason, Heard, StageTimes, TextDelta, Usage
from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription
from voicechat.contract.requests import AudioPart, ResponseRequest, SpeechRequest, TextPart
from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm
from voicechat.faces.app import FaceSettings, create_app

WORD_SAMPLES = PCM_RATE // 5


@dataclass
class FakeResponse:
    """Follows the script of its cascade, one event at a time."""

    id: str
    cascade: FakeCascade
    request: ResponseRequest
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    def cancel(self) -> None:
        self.cancelled.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        count = 0
        async for event in self._script():
            if self.cascade.error is not None and count == self.cascade.fails_after:
                self.ended = True
                raise self.cascade.error
            if self.cancelled.is_set():
                event = Finished(FinishReason.CANCELLED, Usage(), StageTimes())
            self.ended = isinstance(event, Finished)
            yield event
            if self.ended:
                return
            count += 1

    async def _script(self) -> AsyncIterator[Event]:
        cascade, request = self.cascade, self.request
        heard = [part.pcm for message in request.messages for part in message.parts if isinstance(part, AudioPart)]
        texts = [part.text for part in request.messages[-1].parts if isinstance(part, TextPart)]
        if request.voice is not None and request.voice not in cascade.model.voices:
            raise InvalidRequest("There is no such voice.", param="voice")
        transcripts = tuple([await cascade.transcribe(pcm) for pcm in heard])
        if heard:
            yield Heard(transcripts)
        text = cascade.reply or f"You said: {' '.join([*texts, *transcripts])}"
        for stop in request.sampling.stop:
            text = text.split(stop)[0]
        words = [word for word in text.split(" ") if word]
        limit = request.sampling.max_tokens or len(words)
        reason = FinishReason.STOP if limit >= len(words) else FinishReason.LENGTH
        words = words[:limit]
        samples = round(WORD_SAMPLES / request.speed)
        for index, word in enumerate(words):
            await either(cascade.gate, self.cancelled)
            if cascade.pause_s:
                await asyncio.sleep(cascade.pause_s)
            yield TextDelta(word if index == 0 else f" {word}")
            if request.audio:
                yield AudioDelta(sine(cascade.hertz, index * samples, samples))
        seconds = sum(pcm.size for pcm in heard) / EARS_RATE
        speech = len(words) * WORD_SAMPLES / PCM_RATE if request.audio else 0.0
        usage = Usage(
            prompt_tokens=10 + sum(len(t.split()) for t in texts),
            cached_tokens=3,
            completion_tokens=len(words),
            speech_tokens=round(speech * 25),
            audio_in_seconds=seconds,
            audio_out_seconds=speech,
        )
        yield Finished(reason, usage, StageTimes(ears=0.01 if heard else None, done=0.5, rows=len(words)))


@dataclass
class FakeSpeech(FakeResponse):
    """Speaks the words of a given text."""

    request: SpeechRequest  # type: ignore[assignment]

    async def _script(self) -> AsyncIterator[Event]:
        cascade, request = self.cascade, self.request
        if request.voice not in (None, *cascade.model.voices):
            raise InvalidRequest("There is no such voice.", param="voice")
        words = [word for word in request.text.split() if any(letter.isalnum() for letter in word)]
        if not words:
            raise InvalidRequest("Nothing in the text can be spoken.", param="text")
        samples = round(WORD_SAMPLES / request.speed)
        for index in range(len(words)):
            await either(cascade.gate, self.cancelled)
            if cascade.pause_s:
                await asyncio.sleep(cascade.pause_s)
            yield AudioDelta(sine(cascade.hertz, index * samples, samples))
        seconds = len(words) * WORD_SAMPLES / PCM_RATE
        usage = Usage(speech_tokens=round(seconds * 25), audio_out_seconds=seconds)
        yield Finished(FinishReason.STOP, usage, StageTimes(done=0.5))


async def either(*events: asyncio.Event) -> None:
    """Wait until one of ``events`` is set."""
    waiters = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()


def sine(hertz: float, start: int, samples: int) -> np.ndarray:
    """int16 sine, RMS 0.25 of full scale."""
    t = np.arange(start, start + samples) / PCM_RATE
    return np.rint(32768 * 0.25 * math.sqrt(2) * np.sin(2 * np.pi * hertz * t)).astype(np.int16)


@dataclass
class FakeCascade:
    """Says ``reply``, or else what it was told; each word sounds as 0.2 s of a tone of ``hertz``.

    ``error`` is raised in place of event number ``fails_after``; words wait for ``gate`` and take ``pause_s`` each.
    """

    model: ModelInfo = field(
        default_factory=lambda: ModelInfo("fake-voice", ("ann", "bob"), "ann", False, 4096, 1_700_000_000)
    )
    ready: bool = True
    reply: str = ""
    hertz: float = 400.0
    error: Exception | None = None
    fails_after: int = 0
    pause_s: float = 0.0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    responses: list[FakeResponse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def respond(self, request: ResponseRequest) -> FakeResponse:
        self.responses.append(FakeResponse(f"fake-{len(self.responses)}", self, request))
        self.asked.set()
        return self.responses[-1]

    def speak(self, request: SpeechRequest) -> FakeResponse:
        self.responses.append(FakeSpeech(f"fake-{len(self.responses)}", self, request))  # type: ignore[arg-type]
        self.asked.set()
        return self.responses[-1]

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        return Transcription(await self.transcribe(pcm), "en")

    async def transcribe(self, pcm: EarsPcm) -> str:
        """How long, how high and how loud: so that tests see what really arrived."""
        assert pcm.dtype == np.float32
        spectrum = np.abs(np.fft.rfft(pcm * np.hanning(pcm.size)))
        hertz = np.argmax(spectrum) * EARS_RATE / pcm.size
        level = np.sqrt(np.mean(pcm[pcm.size // 4 : -pcm.size // 4] ** 2))
        return f"{pcm.size / EARS_RATE:.1f}s {round(hertz / 10) * 10}Hz {level:.2f}"


Serve = Callable[..., Awaitable[str]]


@pytest.fixture
def cascade() -> FakeCascade:
    return FakeCascade()


@pytest.fixture
def apps() -> list[web.Application]:
    """The applications that ``serve`` has started, in order."""
    return []


@pytest.fixture
def served_app(apps: list[web.Application]) -> Callable[[], web.Application]:
    """Gives the application that ``serve`` started last."""
    return lambda: apps[-1]


@pytest.fixture
async def serve(cascade: FakeCascade, apps: list[web.Application]) -> AsyncIterator[Serve]:
    """``await serve(settings, **create_app_options)`` gives the base URL of a server over ``cascade``."""
    runners: list[web.AppRunner] = []

    async def start(settings: FaceSettings | None = None, **options: object) -> str:
        app = create_app(cascade, settings, **options)  # type: ignore[arg-type]
        apps.append(app)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def url(serve: Serve) -> str:
    """Base URL of a server with default settings."""
    return await serve()


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncOpenAI]:
    """The unmodified client of the ``openai`` package, without its retries."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai:
        yield openai


@pytest.fixture
async def serve_ws() -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    """``await serve_ws(cascade, **settings)`` starts the whole application over a double cascade."""
    async with serving() as start:

        async def begin(cascade: DoubleCascade | None = None, **settings: Any) -> Server:
            return await start(cascade or DoubleCascade(), FaceSettings(**settings))

        yield begin


@pytest.fixture
async def make_bench() -> AsyncIterator[Callable[..., Bench]]:
    """``make_bench(cascade, **limits)`` opens a session over WebRTC; each is closed and checked at the end."""
    benches: list[Bench] = []

    def factory(cascade: DoubleCascade | None = None, **limits: Any) -> Bench:
        benches.append(Bench(cascade or DoubleCascade(), **limits))
        return benches[-1]

    yield factory
    for bench in benches:
        await close(bench.session, bench.events)
        assert all(response.cancelled.is_set() or response.ended for response in bench.cascade.responses)
