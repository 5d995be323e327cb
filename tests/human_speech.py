"""Recordings of people, from packages that bring some: nothing that any machine has said."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests import needed
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.media.sound_file import read_sound


def recording(seconds: float) -> Pcm:
    """int16 at 24 kHz of a person who speaks, ``seconds`` long."""
    path = Path(needed.module("moonshine_voice").__file__).parent / "assets" / "two_cities.wav"
    sound = np.concatenate(list(read_sound(path, foreign=True)))
    assert len(sound) >= seconds * PCM_RATE
    return sound[: int(seconds * PCM_RATE)]
