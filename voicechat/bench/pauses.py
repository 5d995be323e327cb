"""Every pause of a set's speech, with what a session knows in it, and whether the speaker went on: the data to which
the endpointing model is fitted, or on which it is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from voicechat.bench.realtime_trace import LiveMicrophone
from voicechat.bench.script import SOUND_RATE, Recording
from voicechat.bench.simulated import Asr, Memory
from voicechat.contract.sound import EARS_RATE, FRAME_MS, FRAME_SAMPLES, EarsPcm
from voicechat.media.resample import resample, to_float
from voicechat.media.silero import Silero
from voicechat.media.smart_turn import SmartTurn
from voicechat.media.vad import SpeechVad
from voicechat.realtime.policy import TurnPolicy
from voicechat.realtime.segmenter import Segmenter

LEAST_MS = 200
"""Shorter silences are no pauses: nothing can be decided in them."""

_ROOM_S = 1.0
_NOISY_S = 3.5
_AFTER_S = 1.2


@dataclass(frozen=True, slots=True, eq=False)
class Pause:
    """``text`` and ``probability`` (that the turn is complete by its sound) as a session has them; ``turn`` is the
    sound up to the last voice; ``went_on_ms``: after so much silence the speaker did, None: it was the end."""

    name: str
    voice: str
    text: str
    probability: float
    turn: EarsPcm
    went_on_ms: int | None


def pauses(
    recordings: Iterable[Recording], silero: Silero, smart_turn: SmartTurn, asr: Asr, memory: Memory, policy: TurnPolicy
) -> Iterator[Pause]:
    """All pauses of at least :data:`LEAST_MS` by the detector of speech, in order."""
    for recording in recordings:
        sound = _microphone(recording)
        vad, segmenter = SpeechVad(silero), Segmenter(policy.segmenter)
        segmenter.settings = type(policy.segmenter)(silence_ms=10_000, max_turn_ms=60_000)
        held: tuple[EarsPcm, EarsPcm] | None = None  # the turn at the moments of hearing and of judging
        heard = judged = np.zeros(0, np.float32)
        longest = 0
        for start in range(0, len(sound) - FRAME_SAMPLES + 1, FRAME_SAMPLES):
            frame = sound[start : start + FRAME_SAMPLES]
            segmenter.push(frame, vad.voiced(frame))
            if not segmenter.open:
                continue
            silence = segmenter.silence_ms
            if silence == 0:
                if held is not None and longest >= LEAST_MS:
                    yield _pause(recording, held, longest, asr, smart_turn, memory)
                held, longest = None, 0
                continue
            longest = silence + FRAME_MS
            if silence == policy.partials.silence_ms:
                heard = segmenter.sound()
            if silence == policy.endpointing.patience("auto").judge_ms:
                judged = segmenter.sound()
                lacking = (policy.endpointing.made_up_ms - silence) * EARS_RATE // 1000
                held = heard, np.pad(judged, (0, max(0, lacking)))
        if held is not None:
            yield _pause(recording, held, None, asr, smart_turn, memory)


def _pause(
    recording: Recording, held: tuple[EarsPcm, EarsPcm], went_on_ms: int | None, asr: Asr, smart_turn: SmartTurn,
    memory: Memory,
) -> Pause:  # fmt: skip
    heard, judged = held
    probability = float(memory.find("turn v3.2", judged, lambda: smart_turn.finished(judged)))
    return Pause(recording.entry.name, recording.voice, asr.text(heard), probability, heard, went_on_ms)


def _microphone(recording: Recording) -> EarsPcm:
    """The recording as a microphone in a quiet room gives it, or in that of its background."""
    microphone = LiveMicrophone(SOUND_RATE)
    if recording.background is not None:
        microphone.surround(recording.background)
    quiet = np.zeros(int((_ROOM_S if recording.background is None else _NOISY_S) * SOUND_RATE), np.float32)
    after = np.zeros(int(_AFTER_S * SOUND_RATE), np.float32)
    total = np.concatenate([quiet, recording.sound, after])
    microphone.say(total)
    frames = []
    for _ in range(len(total) // microphone.frame):
        frames.append(microphone.next_frame())
        microphone.note(frames[-1], 0.0)
    return resample(to_float(np.concatenate(frames)), SOUND_RATE, EARS_RATE)
