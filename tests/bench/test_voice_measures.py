"""Failures, rates, pitch and intervals on texts and sounds of which they are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.bench.voice_measures import failures, spoken_seconds
from voicechat.train.transcripts import Compared, compare, error_rate, error_rate_difference
from voicechat.train.voice_figures import pitch, sounds_of

RATE = 24_000
TEXT = "The old lighthouse keeper climbed the stairs every evening to light the lamp, and he never once forgot."
WORDS = TEXT.split()


def kinds(heard: str, text: str = TEXT) -> tuple[str, ...]:
    return failures(compare(text, heard), 100, 100)


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (TEXT, ()),
        (TEXT.lower().replace(",", ""), ()),
        (" ".join([*WORDS[:6], *WORDS[8:]]), ()),  # two words lost
        (" ".join([*WORDS[:6], *WORDS[9:]]), ("skip",)),
        (" ".join(WORDS[3:]), ("skip",)),
        (" ".join(WORDS[:-2]), ()),
        (" ".join(WORDS[:-3]), ("early end",)),
        ("", ("early end",)),
        (" ".join([*WORDS[:9], *WORDS[6:9], *WORDS[9:]]), ("loop",)),
        (" ".join([*WORDS[:9], *WORDS[7:9], *WORDS[9:]]), ()),  # two words twice are a stumble
        (" ".join([*WORDS, *WORDS[-4:], *WORDS[-4:]]), ("loop",)),
        (" ".join([*WORDS[:4], *["keeper"] * 5, *WORDS[4:]]), ("loop",)),
        (" ".join([*WORDS[:9], "with some other words", *WORDS[9:]]), ()),  # wrong, but no loop
        (" ".join([*WORDS[:3], *WORDS[7:12], *WORDS[9:12]]), ("loop", "skip", "early end")),
    ],
)
def test_failures_by_alignment(heard: str, expected: tuple[str, ...]) -> None:
    assert kinds(heard) == expected


def test_what_the_text_itself_repeats_is_no_loop() -> None:
    text = "Row, row, row your boat. Row, row, row your boat gently down the stream."
    assert kinds(text, text) == ()


def test_words_are_compared_as_spoken() -> None:
    found = compare("Dr. Smith paid $25.", "doctor smith paid twenty-five dollars")
    assert (found.errors, found.words) == (0, 4)
    assert compare("!?", "no words").words == 0


def test_too_long_is_by_the_teacher() -> None:
    fine = Compared(0, 5, 0, 0, 0)
    assert failures(fine, 151, 100) == ("long",)
    assert failures(fine, 150, 100) == ()
    assert failures(fine, 1000, None) == ()


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.sampled_from(["ant", "bee", "cow", "dog"]), max_size=25), cut=st.integers(0, 25))
def test_any_transcript_can_be_compared(words: list[str], cut: int) -> None:
    found = compare(" ".join(words), " ".join(words[cut:] + words[:cut]))
    assert found.words == len(words)
    assert max(found.skipped, found.lost_end) <= len(words)
    assert compare(" ".join(words), " ".join(words)).errors == 0


def test_the_interval_holds_the_rate() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(60):
        counts = [(int(rng.binomial(20, 0.05)), 20) for _ in range(120)]
        value, low, high = error_rate(counts)
        assert low <= value <= high
        inside += low <= 5.0 <= high
    assert inside >= 52  # 57 are expected
    assert error_rate([(1, 10)] * 50) == pytest.approx((10.0, 10.0, 10.0))
    with pytest.raises(ValueError, match="no words"):
        error_rate([(0, 0)])


def test_a_difference_is_taken_text_by_text() -> None:
    """Texts differ far more than the systems do: only pairing shows it."""
    rng = np.random.default_rng(4)
    theirs = [(int(rng.integers(0, 15)), 20) for _ in range(100)]
    ours = [(errors + 1, words) for errors, words in theirs]
    assert error_rate_difference(ours, theirs) == pytest.approx((5.0, 5.0, 5.0))
    with pytest.raises(ValueError, match="same"):
        error_rate_difference(ours, theirs[1:])


def buzz(hertz: np.ndarray | float, seconds: float) -> np.ndarray:
    """A voice-like sound of a pitch that may move: a buzz through a resonance."""
    phase = np.cumsum(np.broadcast_to(hertz, int(seconds * RATE)) / RATE)
    weights = {k: 1 / (1 + ((k * np.mean(hertz) - 600) / 400) ** 2) for k in range(1, 25)}
    sound = sum(weight * np.sin(2 * np.pi * k * phase) for k, weight in weights.items())
    return (0.1 * sound).astype(np.float32)


@pytest.mark.parametrize("hertz", [75.0, 100.0, 140.0, 205.0, 260.0, 380.0])
def test_pitch_of_a_steady_voice(hertz: float) -> None:
    found = pitch(buzz(hertz, 1.0), RATE)
    assert found is not None
    assert found.median_hz == pytest.approx(hertz, rel=0.01)
    assert found.range_semitones < 0.3


def test_range_of_a_gliding_voice() -> None:
    """From 100 to 200 Hz evenly on a musical scale: nine tenths of an octave between the 5th and 95th percentile."""
    found = pitch(buzz(100 * 2 ** np.linspace(0, 1, 3 * RATE), 3.0), RATE)
    assert found is not None
    assert found.median_hz == pytest.approx(141.4, rel=0.02)
    assert found.range_semitones == pytest.approx(10.8, abs=0.4)


def test_noise_and_silence_have_no_pitch() -> None:
    noise = (0.1 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    assert pitch(noise, RATE) is None
    assert pitch(np.zeros(RATE, np.float32), RATE) is None
    assert pitch(np.zeros(10, np.float32), RATE) is None


def test_spoken_seconds_leave_out_the_silence_around() -> None:
    quiet = np.zeros(RATE // 2, np.float32)
    assert spoken_seconds(np.concatenate([quiet, buzz(120, 1.5), quiet]), RATE) == pytest.approx(1.5, abs=0.02)
    assert spoken_seconds(quiet, RATE) == 0.0


def test_speech_sounds_of_a_text() -> None:
    assert sounds_of("Cat.") == 3
    assert sounds_of("A cat sat.") == 7
    assert sounds_of("...") == 0
