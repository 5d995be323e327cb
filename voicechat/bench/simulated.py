"""What a simulated session talks to: the real ASR and the real detectors, each sound heard once and remembered, and a
cascade that makes a tone; how long everything takes is modelled.

The times are those of the embedded model on two cores (``docs/turns.md`` tells how they were taken and how far a
simulated run is from a real one).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.events import AudioDelta, Event, Finished, FinishReason, StageTimes, TextDelta, Usage
from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription
from voicechat.contract.requests import ResponseRequest, SpeechRequest
from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm
from voicechat.media.detectors import Detectors
from voicechat.media.silero import Silero
from voicechat.media.smart_turn import SmartTurn
from voicechat.media.vad import VadPolicy

STEP_S = 0.04
"""Seconds of one speech token."""

_ALL_AT_ONCE = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Seconds. The ASR takes ``asr_s`` and ``asr_per_s`` for each second of sound, a judgement of a turn ``judge_s``;
    one at a time each. A response's first text comes after ``text_s``, its first sound after ``sound_s``, and each of
    its chunks takes ``rtf`` of its length. Events take ``line_s`` on their way, a frame of the microphone
    ``uplink_s``; over WebRTC it takes ``jitter_s`` more."""

    asr_s: float = 0.14
    asr_per_s: float = 0.01
    judge_s: float = 0.05
    text_s: float = 0.05
    sound_s: float = 0.12
    rtf: float = 0.5
    line_s: float = 0.001
    uplink_s: float = 0.002
    jitter_s: float = 0.03


class Memory:
    """What was found for a sound once, kept in ``path`` as JSON by the sound's hash."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str | float] = {}
        if path.is_file():
            self._known = json.loads(path.read_text(encoding="utf-8"))
        self._new = 0

    def find(self, kind: str, sound: EarsPcm, make: Callable[[], str | float]) -> str | float:
        """What ``make`` finds, or has found."""
        pcm = np.round(np.clip(sound, -1, 1) * 32767).astype("<i2")
        key = f"{kind}:{hashlib.sha256(pcm.tobytes()).hexdigest()[:24]}"
        if key not in self._known:
            self._known[key] = make()
            self._new += 1
            if self._new % 200 == 0:
                self.save()
        return self._known[key]

    def save(self) -> None:
        """Keep it, with what others have kept meanwhile."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.is_file():
            self._known = json.loads(self._path.read_text(encoding="utf-8")) | self._known
        part = self._path.with_suffix(f".{os.getpid()}.partial")
        part.write_text(json.dumps(self._known, ensure_ascii=False), encoding="utf-8")
        part.replace(self._path)


class Asr:
    """The embedded family's ASR, loaded when it is first needed."""

    def __init__(self, folder: Path, beam_size: int, memory: Memory) -> None:
        self._folder = folder
        self._beam_size = beam_size
        self._memory = memory
        self._hear: Callable[[EarsPcm], str] | None = None

    def text(self, sound: EarsPcm) -> str:
        """What is said in ``sound``."""
        return str(self._memory.find(f"asr {self._folder.name} {self._beam_size}", sound, lambda: self._make(sound)))

    def _make(self, sound: EarsPcm) -> str:
        if self._hear is None:
            from voicechat.models.ears.whisper import Ears

            self._hear = Ears(str(self._folder), threads=1, beam_size=self._beam_size).transcribe
        return self._hear(sound)


class SimulatedDetectors(Detectors):
    """The real detectors, without threads: what they take is slept."""

    def __init__(
        self, silero: Silero, smart_turn: SmartTurn, memory: Memory, times: ModelTimes, policy: VadPolicy
    ) -> None:
        self._judge = smart_turn
        super().__init__(silero, smart_turn, few=_ALL_AT_ONCE, policy=policy)
        self._memory = memory
        self._times = times
        self._one = asyncio.Lock()

    async def finished(self, turn: EarsPcm) -> float:
        """As the real one's, after the modelled time."""
        async with self._one:
            await asyncio.sleep(self._times.judge_s)
        return float(self._memory.find("turn v3.2", turn, lambda: self._judge.finished(turn)))


class SimulatedResponse:
    """Words, and a tone of ``seconds``."""

    def __init__(self, number: int, seconds: float, times: ModelTimes) -> None:
        self.id = f"simulated-{number}"
        self._seconds = seconds
        self._times = times
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """Stop it. Idempotent."""
        self._cancelled.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        times, made = self._times, 0.0
        usage = Usage(50, 0, round(self._seconds * 4), round(self._seconds / STEP_S))
        if await self._slept(times.text_s):
            for word in ["So", *[" word"] * round(self._seconds * 2)]:
                yield TextDelta(word)
        wait, steps = times.sound_s - times.text_s, 3
        while made < self._seconds and await self._slept(wait):
            length = min(steps * STEP_S, self._seconds - made)
            t = (made + np.arange(round(length * PCM_RATE)) / PCM_RATE) * 2 * np.pi * 220
            yield AudioDelta(np.round(6000 * np.sin(t)).astype(np.int16))
            made += length
            steps = min(round(steps * 1.5), 24)
            wait = times.rtf * length
        stopped = self._cancelled.is_set()
        yield Finished(FinishReason.CANCELLED if stopped else FinishReason.STOP, usage, StageTimes())

    async def _slept(self, seconds: float) -> bool:
        """False if it was cancelled meanwhile."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._cancelled.wait()
        except TimeoutError:
            return True
        return False


class SimulatedCascade:
    """Hears by the real ASR, one sound at a time; replies are tones of ``seconds``."""

    ready = True
    model = ModelInfo("simulated", ("anna",), "anna", sees=False, context_tokens=4096, created=0)

    def __init__(self, asr: Asr, times: ModelTimes, seconds: float) -> None:
        self._asr = asr
        self._times = times
        self._seconds = seconds
        self._count = 0
        self._one = asyncio.Lock()

    def respond(self, request: ResponseRequest) -> SimulatedResponse:
        """Begin a reply."""
        self._count += 1
        return SimulatedResponse(self._count, self._seconds, self._times)

    def speak(self, request: SpeechRequest) -> SimulatedResponse:
        """Nobody asks for it here."""
        raise NotImplementedError

    async def transcribe(self, pcm: EarsPcm) -> str:
        """The text, after the modelled time. What was begun is finished also if nobody waits any more."""
        async with self._one:
            await asyncio.shield(asyncio.sleep(self._times.asr_s + self._times.asr_per_s * len(pcm) / EARS_RATE))
        return self._asr.text(pcm)

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        """As :meth:`transcribe`."""
        return Transcription(await self.transcribe(pcm), "en")
