"""A cascade without models, for tests of the faces and for calls alone: the same answer to the same question, in real
timing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import numpy as np

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import CascadeError, InvalidRequest
from voicechat.contract.events import AudioDelta, Event, Finished, FinishReason, StageTimes, TextDelta, Usage
from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription
from voicechat.contract.requests import ResponseRequest, ResultPart, SpeechRequest, TextPart
from voicechat.contract.sound import PCM_RATE, EarsPcm, Pcm

TONE_HZ = 440
TONE_LEVEL = 8000
"""Peak of the tone that every reply is, int16."""


def tone(seconds: float, start: int = 0) -> Pcm:
    """A tone as int16 at 24 kHz, continuing at sample ``start``."""
    t = (start + np.arange(int(seconds * PCM_RATE))) / PCM_RATE
    made: Pcm = np.round(TONE_LEVEL * np.sin(2 * np.pi * TONE_HZ * t)).astype(np.int16)
    return made


@dataclass
class DoubleCascade:
    """Hears ``transcripts`` one after the other (the last one for ever), answers "You said: …" with a tone.

    A word lasts 0.3 s at speed 1 and takes ``word_delay`` seconds to make. ``fail_transcribe`` and ``fail_respond`` are
    raised instead of an answer; ``fail_after`` words if that is set.
    """

    transcripts: list[str] = field(default_factory=lambda: ["hello there"])
    answer: str | None = None
    word_delay: float = 0.02
    first_delay: float = 0.05
    ears_delay: float = 0.05
    word_seconds: float = 0.3
    sees: bool = False
    ready: bool = True
    fail_transcribe: CascadeError | None = None
    fail_respond: CascadeError | None = None
    fail_after: int = 0
    heard: list[EarsPcm] = field(default_factory=list)
    requests: list[ResponseRequest] = field(default_factory=list)
    asked: list[HearingOptions] = field(default_factory=list)
    speeches: list[SpeechRequest] = field(default_factory=list)
    responses: list[DoubleResponse] = field(default_factory=list)
    transcribe_cancelled: int = 0
    sound: Pcm | None = None
    """What is heard in place of the tone, int16 at 24 kHz, as long as the words take."""

    @property
    def model(self) -> ModelInfo:
        return ModelInfo(
            "double", ("anna", "ben"), "anna", sees=self.sees, context_tokens=8192 if self.sees else 2048, created=0,
            most_images=2 if self.sees else 0,
        )  # fmt: skip

    def respond(self, request: ResponseRequest) -> DoubleResponse:
        self.requests.append(request)
        response = DoubleResponse(self, request, f"double-{len(self.requests)}")
        self.responses.append(response)
        return response

    def speak(self, request: SpeechRequest) -> DoubleResponse:
        self.speeches.append(request)
        response = DoubleResponse(self, request, f"double-speech-{len(self.speeches)}")
        self.responses.append(response)
        return response

    async def transcribe(self, pcm: EarsPcm) -> str:
        self.heard.append(pcm)
        number = len(self.heard) - 1 - self.transcribe_cancelled
        try:
            await asyncio.sleep(self.ears_delay)
        except asyncio.CancelledError:
            self.transcribe_cancelled += 1
            raise
        if self.fail_transcribe is not None:
            raise self.fail_transcribe
        return self.transcripts[min(number, len(self.transcripts) - 1)]

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        self.asked.append(options)
        return Transcription(await self.transcribe(pcm), options.language or "en")


def _refusal(request: SpeechRequest, model: ModelInfo) -> InvalidRequest | None:
    if request.voice not in (None, *model.voices):
        return InvalidRequest(f"There is no voice '{request.voice}'.", param="voice")
    if not any(character.isalnum() for character in request.text):
        return InvalidRequest("Nothing in the text can be spoken.", param="text")
    return None


class DoubleResponse:
    """One response of :class:`DoubleCascade`."""

    def __init__(self, cascade: DoubleCascade, request: ResponseRequest | SpeechRequest, response_id: str) -> None:
        self.id = response_id
        self.cancelled = asyncio.Event()
        self.ended = False
        self._cascade = cascade
        self._speed = request.speed
        self._given = isinstance(request, SpeechRequest)
        self._refusal: InvalidRequest | None = None
        if isinstance(request, SpeechRequest):
            self._text = request.text
            self._refusal = _refusal(request, cascade.model)
        else:
            part = request.messages[-1].parts[-1]
            match part:
                case TextPart():
                    said = part.text
                case ResultPart():
                    said = part.output
                case _:
                    said = "something"
            self._text = cascade.answer or f"You said: {said}."
        self._events: asyncio.Queue[Event | CascadeError] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self._events.get()
            if isinstance(event, CascadeError):
                raise event
            yield event
            if isinstance(event, Finished):
                return

    async def _run(self) -> None:
        """As the real cascade does, a response runs whether or not somebody listens."""
        cascade = self._cascade
        if self._refusal is not None:
            self.ended = True
            return self._events.put_nowait(self._refusal)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        first = None
        words = self._text.split()
        await self._wait(cascade.first_delay)
        position = 0
        for index, word in enumerate(words):
            if cascade.fail_respond is not None and index >= cascade.fail_after:
                self.ended = True
                return self._events.put_nowait(cascade.fail_respond)
            if self.cancelled.is_set():
                break
            if not self._given:
                self._events.put_nowait(TextDelta(word if index == 0 else f" {word}"))
            pcm = tone(cascade.word_seconds / self._speed, position)
            if cascade.sound is not None:
                pcm = cascade.sound[position : position + len(pcm)]
            position += len(pcm)
            await self._wait(cascade.word_delay)
            first = first or loop.time() - begun
            if not self.cancelled.is_set():
                self._events.put_nowait(AudioDelta(pcm))
        self.ended = True
        reason = FinishReason.CANCELLED if self.cancelled.is_set() else FinishReason.STOP
        usage = Usage(speech_tokens=position // 960, audio_out_seconds=position / PCM_RATE)
        if not self._given:
            usage = replace(usage, prompt_tokens=10, completion_tokens=len(words))
        self._events.put_nowait(Finished(reason, usage, StageTimes(first_audio=first, done=loop.time() - begun)))
        return None

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cancelled.wait(), seconds)

    def cancel(self) -> None:
        self.cancelled.set()
