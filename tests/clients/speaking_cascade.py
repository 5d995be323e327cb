"""A cascade for tests that really hears and really speaks, but does not think: its answers are written beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.cascade.listening import error_rate
from tests.clients.talk import QUESTIONS, Listen
from voicechat.contract.cascade import ModelInfo, Watermark
from voicechat.contract.events import AudioDelta, Finished, FinishReason, StageTimes, TextDelta, Usage
from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription
from voicechat.contract.requests import ResponseRequest, TextPart
from voicechat.contract.sound import PCM_RATE, EarsPcm, Pcm

ANSWERS = (
    "A spider has eight legs.",
    "Once upon a time there was a little dog who lived in a small house by the river. Every morning he ran down to the "
    "water and looked at the boats. One day a big boat stopped, and an old man asked him to come along. The little dog "
    "jumped aboard, and together they saw many countries, and in the evening they sat by the fire and ate soup.",
    "The largest ocean on earth is the Pacific Ocean.",
)
"""One for each of :data:`tests.clients.talk.QUESTIONS`."""

PACE = 3.0
"""Sound is made this many times faster than it is played."""


@dataclass
class SpeakingCascade:
    """Hears by ``listen``, and answers with ``sounds``: the answers spoken, int16 at 24 kHz."""

    listen: Listen
    sounds: Sequence[Pcm]
    requests: list[ResponseRequest] = field(default_factory=list)
    responses: list[SpokenResponse] = field(default_factory=list)
    ready: bool = True
    watermark: Watermark | None = None

    @property
    def model(self) -> ModelInfo:
        return ModelInfo("speaking-double", ("anna", "ben"), "anna", False, 2048, created=0, watermark=self.watermark)

    async def transcribe(self, pcm: EarsPcm) -> str:
        return await asyncio.to_thread(self.listen, pcm)

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        return Transcription(await self.transcribe(pcm), "en")

    def respond(self, request: ResponseRequest) -> SpokenResponse:
        part = request.messages[-1].parts[-1]
        said = part.text if isinstance(part, TextPart) else ""
        best = min(range(len(QUESTIONS)), key=lambda index: error_rate(QUESTIONS[index], said))
        self.requests.append(request)
        response = SpokenResponse(f"spoken-{len(self.requests)}", ANSWERS[best], self.sounds[best])
        self.responses.append(response)
        return response


class SpokenResponse:
    """One response of :class:`SpeakingCascade`: word by word, each with its share of the sound."""

    def __init__(self, response_id: str, text: str, sound: Pcm) -> None:
        self.id = response_id
        self.cancelled = asyncio.Event()
        self.ended = False
        self._text = text
        self._sound = sound

    def cancel(self) -> None:
        self.cancelled.set()

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        words = self._text.split(" ")
        place = 0
        reason = FinishReason.STOP
        for index, word in enumerate(words):
            if self.cancelled.is_set():
                reason = FinishReason.CANCELLED
                break
            yield TextDelta(word if index == 0 else f" {word}")
            said = len(" ".join(words[: index + 1]))
            end = len(self._sound) * said // len(self._text)
            yield AudioDelta(self._sound[place:end])
            await asyncio.sleep((end - place) / PCM_RATE / PACE)
            place = end
        self.ended = True
        usage = Usage(prompt_tokens=10, completion_tokens=len(words), speech_tokens=place // 960)
        yield Finished(reason, usage, StageTimes(first_audio=0.01, done=0.1))


def save(path: Path, ears: Path, sounds: Sequence[Pcm]) -> Path:
    """Write what a server in another process needs; see :func:`load`."""
    np.savez(path, *sounds, ears=str(ears))
    return path


def load(path: Path) -> SpeakingCascade:
    """The cascade of a file that :func:`save` wrote."""
    from voicechat.models.ears.whisper import Ears

    with np.load(path) as file:
        sounds = [file[f"arr_{index}"] for index in range(len(ANSWERS))]
        ears = Ears(str(file["ears"]), threads=1, beam_size=1)
    return SpeakingCascade(ears.transcribe, sounds)
