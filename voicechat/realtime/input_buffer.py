"""The protocol's input audio buffer: where the user's turns begin and end, by detection or, in manual mode, by what the
client commits. Pure."""

from __future__ import annotations

from collections import deque

import numpy as np

from voicechat.contract.sound import EARS_RATE, FRAME_MS, EarsPcm
from voicechat.realtime import segmenter
from voicechat.realtime.errors import ClientError
from voicechat.realtime.policy import TurnPolicy
from voicechat.realtime.segmenter import EndReason, Segmenter, TurnEnded
from voicechat.realtime.settings import TurnDetection

MIN_COMMIT_MS = 100
MAX_BUFFER_MS = 5 * 60_000
"""Sound held in manual mode; what is older is dropped."""


class InputBuffer:
    """Takes the microphone's frames (float32, shape ``[320]``, 16 kHz) with the VAD's word on each."""

    def __init__(self, policy: TurnPolicy, detection: TurnDetection | None) -> None:
        self._policy = policy
        self._frames = 0
        self._origin = 0
        self._buffer: deque[EarsPcm] = deque(maxlen=MAX_BUFFER_MS // FRAME_MS)
        self._segmenter: Segmenter | None = None
        self.configure(detection)

    @property
    def open(self) -> bool:
        """True while a detected turn is open."""
        return self._segmenter is not None and self._segmenter.open

    @property
    def now_ms(self) -> int:
        """Milliseconds of sound that were taken so far."""
        return self._frames * FRAME_MS

    @property
    def silence_ms(self) -> int:
        """Milliseconds since the last voice of the detected turn that is open; 0 if none is."""
        return 0 if self._segmenter is None else self._segmenter.silence_ms

    @property
    def voiced_ms(self) -> int:
        """Milliseconds of voice in the detected turn that is open; 0 if none is."""
        return 0 if self._segmenter is None else self._segmenter.voiced_ms

    def sound(self) -> EarsPcm:
        """All sound of the detected turn that is open. Raises RuntimeError if none is."""
        if self._segmenter is None:
            raise RuntimeError("turns are not detected")
        return self._segmenter.sound()

    def configure(self, detection: TurnDetection | None) -> list[segmenter.Effect]:
        """Follow other settings; an open turn is given up if detection is switched off."""
        if detection is None:
            effects = [] if self._segmenter is None else self._segmenter.clear()
            self._segmenter = None
            return self._shifted(effects)
        self._buffer.clear()
        settings = detection.segmenter_settings(self._policy)
        if self._segmenter is None:
            self._segmenter = Segmenter(settings)
            self._origin = self._frames
        else:
            self._segmenter.settings = settings
        return []

    def push(self, frame: EarsPcm, voiced: bool, *, strict: bool) -> list[segmenter.Effect]:
        """Take the next frame. ``strict``: a reply is being heard, so that it takes more to open a turn."""
        self._frames += 1
        if self._segmenter is None:
            self._buffer.append(frame)
            return []
        self._segmenter.strict = strict
        return self._shifted(self._segmenter.push(frame, voiced))

    def starve(self, frames: int) -> list[segmenter.Effect]:
        """No sound came for this long; an open turn ends by that too."""
        if self._segmenter is None or not (self._segmenter.open or self._segmenter.suspecting):
            return []
        self._frames += frames
        return self._shifted(self._segmenter.tick(frames))

    def commit(self) -> list[segmenter.Effect]:
        """The client says that the turn is over. Raises :class:`ClientError` if there is too little sound."""
        if self._segmenter is None:
            held = len(self._buffer) * FRAME_MS
            if held < MIN_COMMIT_MS:
                raise _empty(held)
            audio = np.concatenate(self._buffer)
            self._buffer.clear()
            return [TurnEnded(audio, self.now_ms - held, self.now_ms, 0, EndReason.COMMITTED)]
        if not self._segmenter.open:
            raise _empty(0)
        if (held := 1000 * len(self._segmenter.sound()) // EARS_RATE) < MIN_COMMIT_MS:
            raise _empty(held)
        return self._shifted([self._segmenter.commit()])

    def expect_end(self, silence_ms: int) -> None:
        """What was said sounds finished: so much silence is enough."""
        if self._segmenter is not None:
            self._segmenter.expect_end(silence_ms)

    def reopen(self) -> bool:
        """The turn that has just opened goes on with the last one; False if that was forgotten."""
        return self._segmenter is not None and self._segmenter.reopen()

    def forget(self) -> None:
        """The last turn can't be taken back any more."""
        if self._segmenter is not None:
            self._segmenter.forget()

    def clear(self) -> list[segmenter.Effect]:
        """Forget all sound that is held."""
        self._buffer.clear()
        return [] if self._segmenter is None else self._shifted(self._segmenter.clear())

    def _shifted(self, effects: list[segmenter.Effect]) -> list[segmenter.Effect]:
        """Times as counted from the first frame ever, also if the detector is younger."""
        base = self._origin * FRAME_MS
        if not base:
            return effects
        shifted: list[segmenter.Effect] = []
        for effect in effects:
            match effect:
                case segmenter.SpeechStarted(start_ms):
                    shifted.append(segmenter.SpeechStarted(start_ms + base))
                case TurnEnded(audio, start_ms, end_ms, silence_ms, reason):
                    shifted.append(TurnEnded(audio, start_ms + base, end_ms + base, silence_ms, reason))
                case segmenter.TurnDiscarded(end_ms):
                    shifted.append(segmenter.TurnDiscarded(end_ms + base))
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
