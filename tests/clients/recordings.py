"""Fixtures: what is said to the clients' servers, and what the double answers, as sound; and who understands both."""

from __future__ import annotations

import pytest

from tests import needed
from tests.cascade.listening import SPEAKERS as VOICES
from tests.clients import speaking_cascade, talk
from voicechat.assemble import AssembledPaths
from voicechat.contract.sound import EARS_RATE, PCM_RATE, Pcm
from voicechat.media.resample import resample, to_pcm


@pytest.fixture(scope="session")
def questions() -> list[talk.Sound]:
    """The questions, spoken: float32 at 24 kHz."""
    needed.program("espeak-ng")
    lines = zip(talk.SPEAKERS, talk.QUESTIONS, strict=True)
    return [resample(VOICES[voice](text), EARS_RATE, PCM_RATE) for voice, text in lines]


@pytest.fixture(scope="session")
def spoken_answers() -> list[Pcm]:
    """The answers of the speaking double, spoken: int16 at 24 kHz."""
    reader = needed.module("hibari").Hibari()
    assert reader.sample_rate == PCM_RATE
    return [to_pcm(reader(text, seed=1)) for text in speaking_cascade.ANSWERS]


@pytest.fixture(scope="session")
def listen(models: AssembledPaths) -> talk.Listen:
    """Whisper tiny.en: float32 at 16 kHz to text."""
    from voicechat.models.ears.whisper import Ears

    return Ears(str(models.ears), threads=1, beam_size=5).transcribe
