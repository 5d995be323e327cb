"""Is somebody speaking in this frame? webrtcvad, guarded by an energy floor that follows the room.

webrtcvad alone keeps saying "speech" for up to 100 ms after the last word and takes steady noise for speech now and
then. A frame counts as voiced only if it is also clearly louder than the room, and not far below the speaker's own
level. Everything else about turns (onset, pauses, ends) is in :mod:`voicechat.media.turns`.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt
import webrtcvad

from voicechat.cascade.api import EARS_RATE, EarsPcm

FRAME_MS = 20
FRAME_SAMPLES = EARS_RATE * FRAME_MS // 1000
"""Samples of one frame: 320 at 16 kHz."""

MIN_LEVEL = 10 ** (-55 / 20)
"""RMS (full scale = 1) under which nothing is speech."""

ABOVE_ROOM = 10 ** (8 / 20)
"""How much louder than the room speech must be."""

BELOW_SPEAKER = 10 ** (-32 / 20)
"""A frame this far below the speaker's recent level is the hangover of a word, not a word."""

_SPEAKER_DECAY = 10 ** (-6 / 20 * FRAME_MS / 1000)  # the speaker's level is forgotten at 6 dB/s
_SMOOTHED_FRAMES = 5
_BLOCK_FRAMES = 500 // FRAME_MS
_BLOCKS = 6


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

    def __init__(self, threshold: float = 0.5) -> None:
        self._vad = webrtcvad.Vad()
        self._room = RoomLevel()
        self._speaker = 0.0
        self.set_threshold(threshold)

    def set_threshold(self, threshold: float) -> None:
        """Change the threshold at once. Raises ValueError outside 0..1."""
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold must be between 0 and 1, not {threshold}")
        self._vad.set_mode(min(3, int(threshold * 4)))

    def voiced(self, frame: EarsPcm) -> bool:
        """True if ``frame`` (float32, shape ``[320]``) holds speech. Raises ValueError for any other length."""
        if frame.shape != (FRAME_SAMPLES,):
            raise ValueError(f"a frame has {FRAME_SAMPLES} samples, not {frame.shape}")
        level = float(np.sqrt(np.mean(np.square(frame, dtype=np.float64))))
        spoken = bool(self._vad.is_speech(_int16(frame).tobytes(), EARS_RATE))
        floor = max(MIN_LEVEL, self._room.update(level) * ABOVE_ROOM, self._speaker * BELOW_SPEAKER)
        self._speaker *= _SPEAKER_DECAY
        if not spoken or level <= floor:
            return False
        self._speaker = max(self._speaker, level)
        return True


def _int16(frame: EarsPcm) -> npt.NDArray[np.int16]:
    return np.clip(np.round(frame * 32767.0), -32768, 32767).astype(np.int16)
