"""Runs of written words that are read as one: amounts, dates, times, numbers with units, names with numerals.

Each rule is a pattern at the beginning of the next few words (joined by single spaces) and what is read for it. The
first rule that matches wins, so those that take more words stand before those that take fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicechat.reading import tables as t
from voicechat.reading.rules import RULES
from voicechat.reading.rules.names import NO_NAMES
from voicechat.reading.rules.rule import WINDOW


class Phrase(NamedTuple):
    """``words`` written words are read as ``text``, its punctuation included."""

    words: int
    text: str


def match(words: Sequence[str]) -> Phrase | None:
    """The phrase with which ``words`` begin, if any."""
    text = " ".join(words)
    for rule in RULES:
        found = rule.pattern.match(text)
        if found is None:
            continue
        said = rule.read(found)
        if said is not None:
            lead, tail = found["lead"], found["tail"]
            return Phrase(found.group().count(" ") + 1, f"{lead}{said}{tail}")
    return None


def wants_more(words: Sequence[str], following: str = "") -> bool:
    """Whether a phrase that begins with ``words`` might take the next word too.

    ``following`` is the first character of the next word, if it is known already.
    """
    if len(words) >= WINDOW:
        return False
    first = words[0].lstrip("([\"“‘'«¿¡#@")
    if len(words) == 1:
        bare = first.rstrip(".,;:!?…\"”’'»)]")
        if first.endswith(("!", "?", ";", "…")):
            return False
        return bool(
            any(character.isdigit() or character in t.VULGAR for character in first)
            or bare in t.CURRENCIES
            or bare in t.TITLES
            or (bare == "World" and following in "W")
            or bare in t.NUMBERED
            or (bare in t.ROMAN_CARDINAL and following in _ROMAN_LETTERS)
            or bare.lower() in t.MONTH_FORMS
            or bare in {"-", "–", "−", "+", "~", "≈", "√", "#", "№", "Pan"}
            or (following in _ROMAN_LETTERS and _may_be_numbered(first, bare))
        )
    last = words[-1]
    if last.endswith(("!", "?", ";", "…")):
        return False
    bare = last.strip("()[]\"“”‘’'.,;:!?…")
    return bool(
        any(character.isdigit() or character in t.VULGAR for character in last)
        or bare in t.UNITS
        or bare in t.CURRENCIES
        or bare in t.MAGNITUDES
        or bare.lower() in t.MAGNITUDE_WORDS
        or bare.lower() in t.MONTH_FORMS
        or bare
        in {
            "-",
            "–",
            "—",
            "−",
            "+",
            "×",
            "x",
            "*",
            "/",
            "of",
            "the",
            "to",
            "and",
            "War",
            "fl",
            "sq",
            "=",
            "÷",
            "±",
            "^",
        }
    )


_ROMAN_LETTERS = "IVXLCDM"
_BETWEEN = frozenset("- – — − + × x * / of the to and War fl sq = ÷ ± ^".split())
"""What may stand between two parts of a phrase."""


def _may_be_numbered(first: str, bare: str) -> bool:
    return bare[:1].isupper() and bare.isalpha() and bare not in NO_NAMES and not first.endswith((".", ",", ":"))
