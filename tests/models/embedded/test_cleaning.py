"""Words as chat models write them, and what is read of them."""

from __future__ import annotations

import pytest

from voicechat.models.embedded.cleaning import clean_word
from voicechat.models.embedded.frontend import read_text


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (">", "greater than"),
        ("&&", "and"),
        ("!=", "is not equal to"),
        ("*", "times"),
        ("&amp;", "and"),
        ("R&amp;D", "R&D"),
        ("&lt;", "less than"),
        ("≈", "approximately"),
        ("√2", "square root of 2"),
        ("2x4", "2 by 4"),
        ("10^6", "10 to the power of 6"),
        ("~20", "about 20"),
        ("8am-5pm", "8 a.m. to 5pm"),
        ("C#", "C sharp"),
        ("CO2,", "C O 2,"),
        ("IPv6", "I P version 6"),
        ("50/50", "50 50"),
        ("1.5M", "1.5 million"),
        ("20K.", "20 thousand."),
        ("3m²", "3 square meters"),
        ("1,2,3", "1, 2, 3"),
        ("1,234,567", "1,234,567"),
        ("12,34,567", "12,34,567"),
        ("https://example.com/a^2~x", "example dot com"),
        ("**bold**", "bold"),
        ("user@mail.com", "user at mail dot com"),
    ],
)
def test_words(word: str, expected: str) -> None:
    assert clean_word(word, line_start=False) == expected


def test_marks_of_a_list_are_not_read() -> None:
    assert clean_word("*", line_start=True) == clean_word(">", line_start=True) == ""


def test_signs_are_read_in_a_text() -> None:
    def symbols(text: str) -> list[int]:
        return [mark.symbol for mark in read_text(text)]

    assert symbols("5 > 3") == symbols("5 greater than 3")
    assert symbols("It grew to 20K.") == symbols("It grew to 20 thousand.")
    assert symbols("x ≤ y") == symbols("x less than or equal to y")
