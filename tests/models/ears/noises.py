"""Sounds in which Whisper finds words, though nobody says any."""

from __future__ import annotations

from typing import Any

import numpy as np

from voicechat.bench.script import SOUND_RATE, leveled
from voicechat.bench.script_sounds import EFFECTS
from voicechat.media.resample import resample
from voicechat.models.ears.pieces import RATE

Sound = np.ndarray[Any, np.dtype[np.float32]]

NOISES = (("throat", 7), ("throat", 22), ("cough", 28), ("mm-hm", 0))
"""Names and seeds."""


def in_quiet(sound: Sound) -> Sound:
    """``sound`` (float32 mono 16 kHz) with half a second of a quiet room before and behind it."""
    quiet = np.random.default_rng(7).normal(0, 0.0005, RATE // 2).astype(np.float32)
    return np.concatenate([quiet, sound, quiet])


def noise(name: str, seed: int) -> Sound:
    """One of the noises, quieter than speech, in a quiet room."""
    return in_quiet(resample(leveled(EFFECTS[name](seed), -28.0), SOUND_RATE, RATE))
