"""What the ears may pass on: no text longer than its sound allows, none that says again what was said once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.models.ears.repeats import MOST_PER_SECOND, SPARE, doubtful, kept, units, voiced_seconds

WHALES = "Can you tell me a fun fact about whales?"
MENU = "For sales press 1. For support press 2. For mailbox options press 0."
WORDS = st.lists(st.sampled_from("one two three four five six seven eight nine ten no yes".split()), max_size=40)


def settled(text: str, seconds: float, voiced: float | None = None) -> str:
    words, joint = units(text)
    return joint.join(words[index] for index in kept(words, seconds, seconds if voiced is None else voiced))


@pytest.mark.parametrize(
    ("text", "seconds", "wanted"),
    [
        (f"{WHALES} {WHALES}", 2.6, WHALES),
        (f"{WHALES} {WHALES.replace('whales', 'Wales')}", 2.6, WHALES),
        (f"{MENU} {' '.join(['For mailbox options press 0.'] * 4)}", 5.5, MENU),
        (f"{WHALES} {WHALES}", 6.0, f"{WHALES} {WHALES}"),  # a person who asks twice takes twice the time
        ("No, no, no.", 0.6, "No, no, no."),
        ("Thank you. Thank you.", 0.7, "Thank you. Thank you."),
        ("you " * 80, 2.0, "you"),
        ("謝謝觀看" * 20, 1.0, "謝謝觀看"),
        ("", 1.0, ""),
        ("Yes.", 0.2, "Yes."),
    ],
)
def test_what_is_said_twice(text: str, seconds: float, wanted: str) -> None:
    assert settled(text, seconds) == wanted


def test_a_text_that_nobody_could_say_is_none() -> None:
    sentence = "The quick brown fox jumps over the lazy dog while seven wizards quietly mix a purple drink for nobody"
    assert settled(sentence, 1.0) == ""
    assert settled(sentence, 6.0) == sentence


def test_another_hearing_is_asked_for_where_a_phrase_follows_itself() -> None:
    assert doubtful(f"{WHALES} {WHALES}")
    assert doubtful("bye bye bye bye")
    assert not doubtful("bye bye bye")
    assert not doubtful("For sales press 1. For support press 2.")
    assert not doubtful("")


@given(WORDS, st.floats(0.0, 30.0), st.floats(0.0, 1.0))
def test_what_is_left(words: list[str], seconds: float, share: float) -> None:
    """Words in their order, none that was not there, no more than can be said, and all if they can be."""
    left = kept(words, seconds, seconds * share)
    assert left == sorted(set(left))
    assert all(0 <= index < len(words) for index in left)
    length = sum(len(words[index]) + 1 for index in left)
    assert length <= SPARE + MOST_PER_SECOND * seconds
    if not doubtful(" ".join(words)) and sum(len(word) + 1 for word in words) <= MOST_PER_SECOND * seconds:
        assert left == list(range(len(words)))


@given(st.lists(st.integers(0, 10**6).map(str), min_size=3, max_size=12, unique=True), st.integers(2, 5))
def test_copies_in_the_time_of_one_become_one(phrase: list[str], copies: int) -> None:
    seconds = sum(len(word) + 1 for word in phrase) / 15
    left = kept(phrase * copies, seconds, seconds)
    assert [(phrase * copies)[index] for index in left] in (phrase, [])
    assert kept(phrase, seconds, seconds) == list(range(len(phrase)))


def test_voice_is_what_is_not_much_quieter_than_the_loud_parts() -> None:
    rng = np.random.default_rng(1)
    sound = rng.normal(0, 0.1, 5 * 16_000).astype(np.float32)
    sound[16_000 : 3 * 16_000] *= 0.001
    assert voiced_seconds(sound) == pytest.approx(3.0, abs=0.05)
    assert voiced_seconds(np.zeros(16_000, np.float32)) == 0
    assert voiced_seconds(np.zeros(0, np.float32)) == 0
