"""The CPU's ears by their short window."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cascade.listening import _espeak, error_rate
from tests.models.ears.noises import NOISES, in_quiet, noise
from voicechat.assemble import AssembledPaths
from voicechat.contract.hearing import PLAIN
from voicechat.models.ears import whisper
from voicechat.models.ears.whisper import LEAST_SECONDS, Ears

FAST = (
    ("en-gb+f3", "I would like to know when the next train to the city leaves, and how long it takes to get there."),
    ("en-us", "Please tell me how many days there are in a week, and how many weeks there are in a year."),
)


@pytest.fixture(scope="module")
def ears(models: AssembledPaths) -> Ears:
    return Ears(str(models.ears), threads=1, beam_size=3)


@pytest.mark.parametrize(("voice", "text"), FAST)
def test_who_speaks_fast_is_heard_to_the_end(ears: Ears, voice: str, text: str) -> None:
    """With more tokens than half of the bound, which is what CTranslate2 makes of it."""
    sound = _espeak(voice, 260)(text).astype(np.float32)
    short = ears._hear_short(sound, PLAIN, 0.0, LEAST_SECONDS)
    assert short is not None
    heard = short.text
    assert error_rate(text, heard) <= 0.2
    assert heard.split()[-1] == text.split()[-1]
    assert ears.transcribe(sound) == heard


def test_the_bound_is_met_to_the_token(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token more than the bound is a loop, as many as the bound are a text."""
    sound = _espeak("en-gb+f3", 140)("What is the capital of France?").astype(np.float32)
    heard = ears._hear_short(sound, PLAIN, 0.0, LEAST_SECONDS)
    assert heard is not None
    monkeypatch.setattr(whisper, "TOKENS_PER_SECOND", 0)
    count = len(ears._tokenizer("en", False).encode(f" {heard.text}"))
    monkeypatch.setattr(whisper, "SPARE_TOKENS", count)
    assert ears._hear_short(sound, PLAIN, 0.0, LEAST_SECONDS) == heard
    monkeypatch.setattr(whisper, "SPARE_TOKENS", count - 1)
    assert ears._hear_short(sound, PLAIN, 0.0, LEAST_SECONDS) is None


@pytest.mark.parametrize(("name", "seed"), NOISES)
def test_no_words_are_heard_in_sounds_that_are_none(
    ears: Ears, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whisper finds some, but neither is sure that anybody speaks, nor of the words; it is of quiet words."""
    sound = noise(name, seed)
    assert ears.transcribe(sound) == ""
    word = _espeak("en-us", 140)("Yes.").astype(np.float32)
    assert ears.transcribe(in_quiet(word * np.float32(0.1))).startswith("Yes")
    monkeypatch.setattr("voicechat.models.ears.whisper.UNLIKELY_WORDS", -9.0)
    assert ears.transcribe(sound) != ""


@pytest.mark.parametrize("speed", [140, 200])
def test_no_words_are_heard_in_a_hum(ears: Ears, speed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Damn." is, without the rule."""
    hum = in_quiet(_espeak("en-us+whisper", speed)("Hmm.").astype(np.float32) * np.float32(0.5))
    assert ears.transcribe(hum) == ""
    monkeypatch.setattr("voicechat.models.ears.whisper.UNLIKELY_WORDS", -9.0)
    assert ears.transcribe(hum) != ""
