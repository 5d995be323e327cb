"""Spoken questions by the voices that may be installed."""

from __future__ import annotations

import importlib.util
import shutil

import numpy as np
import pytest

from voicechat.bench import spoken
from voicechat.bench.measures import first_audible, last_voiced
from voicechat.bench.spoken import LEAD_S, NoVoice, speak

HERE = {"hibari": importlib.util.find_spec("hibari") is not None, "espeak-ng": shutil.which("espeak-ng") is not None}


@pytest.mark.parametrize("voice", spoken.VOICES)
def test_questions_are_spoken(voice: str) -> None:
    if not HERE[voice]:
        with pytest.raises(NoVoice, match="install"):
            speak(["Why?"], 24_000, voice)
        return
    name, sounds = speak(["Why is the sky blue?", "What is the capital of France, and why?"], 24_000, voice)
    assert name == voice
    assert len(sounds) == 2
    for sound in sounds:
        assert sound.dtype == np.float32
        assert float(np.abs(sound).max()) <= 1.0
        first, last = first_audible(sound), last_voiced(sound, 24_000)
        assert first is not None
        assert last is not None
        assert first >= LEAD_S * 24_000 - 48
        assert 0.5 < (last - first) / 24_000 < 6
    assert len(sounds[1]) > len(sounds[0])
