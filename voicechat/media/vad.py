"""Is somebody speaking in this frame? A cheap gate for every 20 ms, and Silero's decision on what passes it.

The gate is webrtcvad, guarded by an energy floor that follows the room. webrtcvad alone keeps saying "speech" for up to
100 ms after the last word and takes steady noise for speech now and then. A frame passes only if it is also clearly
louder than the room, and not far below the speaker's own level. The gate knows to the frame when a sound ends, but
takes coughs, typing and changing noise for speech; Silero does not, but is some 50 ms late at the end of a word. So
a frame is voiced if both say so. Everything else about turns (onset, pauses, ends) is decided by the room
``realtime``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import webrtcvad

from voicechat.contract.sound import EARS_RATE, FRAME_MS, FRAME_SAMPLES, EarsPcm
from voicechat.media.silero import Silero, SileroStream, Windows

_SPEAKER_DECAY = 10 ** (-6 / 20 * FRAME_MS / 1000)  # the speaker's level is forgotten at 6 dB/s
_SMOOTHED_FRAMES = 5
_BLOCK_FRAMES = 500 // FRAME_MS
_BLOCKS = 6

_USER_FRAMES = 100  # over so many voiced frames the user's level is a mean, of power
_USER_DECAY = 10 ** (-0.5 / 20 * FRAME_MS / 1000)  # it is forgotten at 0.5 dB/s

_AWAKE_FRAMES = 1000 // FRAME_MS
_BEFORE_FRAMES = 160 // FRAME_MS
_NOTHING = Windows(False, [])


@dataclass(frozen=True, slots=True)
class VadPolicy:
    """When a frame is voiced. ``min_level_db`` (RMS of full scale): under it nothing is speech; speech is
    ``above_room_db`` louder than the room, and a frame ``below_speaker_db`` below the speaker's recent level is the
    hangover of a word, not a word.

    Speech that Silero has found goes on until its probability is ``release`` below the threshold. While a reply is
    heard, of which the microphone may hear an echo, the threshold is at least ``strict_threshold``, and a voice
    ``below_user_db`` below the user's is somebody else's: people in the background, a television, the echo.
    """

    min_level_db: float = -55.0
    above_room_db: float = 8.0
    below_speaker_db: float = 32.0
    release: float = 0.15
    strict_threshold: float = 0.7
    below_user_db: float = 14.0


class Heard(NamedTuple):
    """A frame after the gate: did it pass, and did it wake Silero; what has to be run, and does its result count (not
    if the frame completes no window, and only sound from before it is run); the frame's RMS (full scale = 1)."""

    passed: bool
    woken: bool
    taken: Windows
    counts: bool
    level: float


_UNHEARD = Heard(False, False, _NOTHING, False, 0.0)


class Vad(Protocol):
    """Says for each 20 ms frame whether it is voiced; one per microphone."""

    def set_threshold(self, threshold: float) -> None:
        """Change the threshold (0..1) at once: higher takes less sound for speech. Raises ValueError outside."""

    def voiced(self, frame: EarsPcm, *, strict: bool = False) -> bool:
        """True if ``frame`` (float32, shape ``[320]``) holds speech. ``strict``: the other side is being heard. Raises
        ValueError for any other length."""


class RoomLevel:
    """The room: the least that 100 ms had in the last 3 s. Speech dips that low, steady noise never does."""

    def __init__(self) -> None:
        self._energies: deque[float] = deque(maxlen=_SMOOTHED_FRAMES)
        self._blocks: deque[float] = deque([math.inf], maxlen=_BLOCKS)
        self._in_block = 0

    def update(self, level: float) -> float:
        """Take the RMS of the next frame; the room's RMS."""
        self._energies.append(level * level)
        if self._in_block == _BLOCK_FRAMES:
            self._blocks.append(math.inf)
            self._in_block = 0
        self._in_block += 1
        smoothed = math.sqrt(sum(self._energies) / len(self._energies))
        self._blocks[-1] = min(self._blocks[-1], smoothed)
        return min(self._blocks)


class FrameVad:
    """Says for each 20 ms frame whether it is voiced. Holds the room's and the speaker's level; one per microphone.

    ``threshold`` is 0..1 as in the realtime protocol's ``server_vad``: higher takes less sound for speech.
    """

    def __init__(self, threshold: float = 0.5, policy: VadPolicy | None = None) -> None:
        policy = policy or VadPolicy()
        self._least, self._above_room = _ratio(policy.min_level_db), _ratio(policy.above_room_db)
        self._below_speaker = _ratio(-policy.below_speaker_db)
        self._vad = webrtcvad.Vad()
        self._room = RoomLevel()
        self._speaker = 0.0
        self.level = 0.0
        """RMS of the newest frame."""
        self.set_threshold(threshold)

    def set_threshold(self, threshold: float) -> None:
        """Change the threshold at once. Raises ValueError outside 0..1."""
        _check_threshold(threshold)
        self._vad.set_mode(min(3, int(threshold * 4)))

    def voiced(self, frame: EarsPcm, *, strict: bool = False) -> bool:
        """True if ``frame`` (float32, shape ``[320]``) holds speech, by sound and level alone; ``strict`` changes
        nothing. Raises ValueError for any other length."""
        if frame.shape != (FRAME_SAMPLES,):
            raise ValueError(f"a frame has {FRAME_SAMPLES} samples, not {frame.shape}")
        level = self.level = _rms(frame)
        spoken = bool(self._vad.is_speech(_int16(frame).tobytes(), EARS_RATE))
        floor = max(self._least, self._room.update(level) * self._above_room, self._speaker * self._below_speaker)
        self._speaker *= _SPEAKER_DECAY
        if not spoken or level <= floor:
            return False
        self._speaker = max(self._speaker, level)
        return True


class SpeechVad:
    """The gate and Silero. ``threshold`` is the probability from which Silero takes a sound for speech.

    While the gate has been shut for a second, Silero rests: a quiet microphone costs next to nothing. When it opens,
    Silero begins afresh with the 160 ms before, so that nothing which was heard long ago makes it deaf.

    It knows how loud the user is from what was said while nobody else spoke.
    """

    def __init__(self, silero: Silero, threshold: float = 0.5, policy: VadPolicy | None = None) -> None:
        self._policy = policy or VadPolicy()
        self._below_user = _ratio(-self._policy.below_user_db)
        self._gate = FrameVad(policy=self._policy)
        self.stream = SileroStream(silero)
        self._before: deque[EarsPcm] = deque(maxlen=_BEFORE_FRAMES)
        self._awake = 0
        self._speech = False
        self._user = 0.0  # mean power of the user's voice
        self._user_frames = 0  # of which it is the mean
        self.set_threshold(threshold)

    def set_threshold(self, threshold: float) -> None:
        """Change the threshold at once. Raises ValueError outside 0..1."""
        _check_threshold(threshold)
        self._threshold = threshold

    def voiced(self, frame: EarsPcm, *, strict: bool = False) -> bool:
        """True if ``frame`` (float32, shape ``[320]``) holds speech; ``strict`` asks for more certainty, and for the
        user's level, as far as it is known. Raises ValueError for any other length."""
        heard = self.hear(frame)
        return self.decide(heard, self.stream.run(heard.taken), strict=strict)

    def hear(self, frame: EarsPcm) -> Heard:
        """The first half of :meth:`voiced`: the gate, and what :attr:`stream` has to run for the frame.

        The frames after it may be heard before that is run and decided on. Raises ValueError for another length.
        """
        passed = self._gate.voiced(frame)
        woken, before = passed and not self._awake, _NOTHING
        if passed:
            if woken:
                self.stream.reset()
                if self._before:
                    before = self.stream.take(np.concatenate(self._before))
                    self._before.clear()
            self._awake = _AWAKE_FRAMES
        if not self._awake:
            self._before.append(frame)
            return _UNHEARD
        self._awake -= 1
        own = self.stream.take(frame)
        taken = Windows(before.fresh or own.fresh, before.windows + own.windows)
        return Heard(passed, woken, taken, bool(own.windows), self._gate.level)

    def decide(self, heard: Heard, probability: float | None, *, strict: bool = False) -> bool:
        """The second half: with the probability that came of the run, for every frame in order."""
        if heard.woken:
            self._speech = False
        if heard.counts and probability is not None:
            threshold = max(self._threshold, self._policy.strict_threshold) if strict else self._threshold
            self._speech = probability >= (max(threshold - self._policy.release, 0.01) if self._speech else threshold)
        self._user *= _USER_DECAY**2
        if not heard.passed or not self._speech:
            return False
        power = heard.level**2
        if strict:
            return power >= self._user * self._below_user**2
        self._user_frames = min(self._user_frames + 1, _USER_FRAMES)
        self._user += (power - self._user) / self._user_frames
        return True


def _check_threshold(threshold: float) -> None:
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold must be between 0 and 1, not {threshold}")


def _ratio(decibels: float) -> float:
    return float(10 ** (decibels / 20))


def _rms(frame: EarsPcm) -> float:
    return math.sqrt(float(np.add.reduce(np.square(frame, dtype=np.float64))) / len(frame))


def _int16(frame: EarsPcm) -> npt.NDArray[np.int16]:
    scaled = frame * np.float32(32767.0)
    np.rint(scaled, scaled)
    np.maximum(scaled, -32768.0, scaled)
    np.minimum(scaled, 32767.0, scaled)
    return scaled.astype(np.int16)
