"""Where the user's turns begin and end: by detection, or, in manual mode, by what the client commits. Pure."""

from __future__ import annotations

from collections import deque

import numpy as np

from voicechat.contract.sound import EARS_RATE, FRAME_MS, EarsPcm
from voicechat.realtime import turn_detector as turns
from voicechat.realtime.errors import ClientError
from voicechat.realtime.settings import TurnDetection
from voicechat.realtime.turn_detector import EndReason, TurnDetector, TurnEnded, TurnSettings

MIN_COMMIT_MS = 100
MAX_BUFFER_MS = 5 * 60_000
"""Sound held in manual mode; what is older is dropped."""


class Turns:
    """Takes the microphone's frames (float32, shape ``[320]``, 16 kHz) with the VAD's word on each."""

    def __init__(self, base: TurnSettings, detection: TurnDetection | None) -> None:
        self._base = base
        self._frames = 0
        self._origin = 0
        self._buffer: deque[EarsPcm] = deque(maxlen=MAX_BUFFER_MS // FRAME_MS)
        self._detector: TurnDetector | None = None
        self.configure(detection)

    @property
    def speaking(self) -> bool:
        """True while a detected turn is open."""
        return self._detector is not None and self._detector.speaking

    @property
    def manual(self) -> bool:
        """True if the client decides what a turn is."""
        return self._detector is None

    @property
    def now_ms(self) -> int:
        """Milliseconds of sound that were taken so far."""
        return self._frames * FRAME_MS

    @property
    def silence_ms(self) -> int:
        """Milliseconds since the last voice of the detected turn that is open; 0 if none is."""
        return 0 if self._detector is None else self._detector.silence_ms

    @property
    def voiced_ms(self) -> int:
        """Milliseconds of voice in the detected turn that is open; 0 if none is."""
        return 0 if self._detector is None else self._detector.voiced_ms

    def sound(self) -> EarsPcm:
        """All sound of the detected turn that is open. Raises RuntimeError if none is."""
        if self._detector is None:
            raise RuntimeError("turns are not detected")
        return self._detector.sound()

    def configure(self, detection: TurnDetection | None) -> list[turns.Effect]:
        """Follow other settings; an open turn is given up if detection is switched off."""
        if detection is None:
            effects = [] if self._detector is None else self._detector.clear()
            self._detector = None
            return self._shifted(effects)
        self._buffer.clear()
        settings = detection.turn_settings(self._base)
        if self._detector is None:
            self._detector = TurnDetector(settings)
            self._origin = self._frames
        else:
            self._detector.settings = settings
        return []

    def push(self, frame: EarsPcm, voiced: bool, *, strict: bool) -> list[turns.Effect]:
        """Take the next frame. ``strict``: a reply is being heard, so that it takes more to open a turn."""
        self._frames += 1
        if self._detector is None:
            self._buffer.append(frame)
            return []
        self._detector.strict = strict
        return self._shifted(self._detector.push(frame, voiced))

    def starve(self, frames: int) -> list[turns.Effect]:
        """No sound came for this long; an open turn ends by that too."""
        if self._detector is None or not (self._detector.speaking or self._detector.suspecting):
            return []
        self._frames += frames
        return self._shifted(self._detector.tick(frames))

    def commit(self) -> list[turns.Effect]:
        """The client says that the turn is over. Raises :class:`ClientError` if there is too little sound."""
        if self._detector is None:
            held = len(self._buffer) * FRAME_MS
            if held < MIN_COMMIT_MS:
                raise _empty(held)
            audio = np.concatenate(self._buffer)
            self._buffer.clear()
            return [TurnEnded(audio, self.now_ms - held, self.now_ms, 0, EndReason.SILENCE)]
        if not self._detector.speaking:
            raise _empty(0)
        effects: list[turns.Effect] = []
        while self.speaking:
            self._frames += 1
            effects += self._detector.tick()
        # the pause that this makes up is none that anybody should act upon
        return self._shifted([e for e in effects if not isinstance(e, turns.SpeechPaused | turns.SpeechResumed)])

    def expect_end(self, silence_ms: int) -> None:
        """What was said sounds finished: so much silence is enough."""
        if self._detector is not None:
            self._detector.expect_end(silence_ms)

    def clear(self) -> list[turns.Effect]:
        """Forget all sound that is held."""
        self._buffer.clear()
        return [] if self._detector is None else self._shifted(self._detector.clear())

    def _shifted(self, effects: list[turns.Effect]) -> list[turns.Effect]:
        """Times as counted from the first frame ever, also if the detector is younger."""
        base = self._origin * FRAME_MS
        if not base:
            return effects
        shifted: list[turns.Effect] = []
        for effect in effects:
            match effect:
                case turns.SpeechStarted(start_ms):
                    shifted.append(turns.SpeechStarted(start_ms + base))
                case TurnEnded(audio, start_ms, end_ms, silence_ms, reason):
                    shifted.append(TurnEnded(audio, start_ms + base, end_ms + base, silence_ms, reason))
                case turns.TurnDiscarded(end_ms):
                    shifted.append(turns.TurnDiscarded(end_ms + base))
                case _:
                    shifted.append(effect)
        return shifted


def seconds_of(audio: EarsPcm) -> float:
    """Length of a sound."""
    return round(len(audio) / EARS_RATE, 3)


def _empty(held: int) -> ClientError:
    message = (
        f"Error committing input audio buffer: buffer too small. Expected at least {MIN_COMMIT_MS}ms of audio, "
        f"but buffer only has {held}ms of audio."
    )
    return ClientError(message, code="input_audio_buffer_commit_empty")
