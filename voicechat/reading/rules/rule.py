"""What a rule is, and the pieces that patterns are made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from voicechat.reading import numbers as n
from voicechat.reading import tables as t

WINDOW = 4
"""Most words that one rule takes."""

LEAD = r"(?:[(\[\"“‘'’«¿¡](?!\d0['’]?s))*"
TAIL = "[.,;:!?…\"”’'»)\\]]*"
Read = Callable[[re.Match[str]], str | None]


class Rule(NamedTuple):
    """``read`` says what is read for a match of ``pattern``; None if the pattern took too much."""

    pattern: re.Pattern[str]
    read: Read


class Rules(list[Rule]):
    """The rules of one kind, the more particular first."""

    def add(self, core: str) -> Callable[[Read], Read]:
        """A rule for ``core`` at the beginning of the words, brackets and punctuation around it kept."""

        def append(read: Read) -> Read:
            self.append(Rule(re.compile(rf"(?P<lead>{LEAD})(?:{core})(?P<tail>{TAIL})(?=\s|$)"), read))
            return read

        return append


NUM = r"(?:\d+(?:[.,]\d+)*|\.\d+)"
SIGN = r"[-−–+±~≈]?"
SIGNS_READ = {
    "": "", "-": "minus ", "−": "minus ", "–": "minus ", "+": "plus ", "±": "plus or minus ", "~": "about ",
    "≈": "approximately ",
}  # fmt: skip
DASH = r"\s?[-–—−]\s?"


def alternatives(words: Sequence[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


MONTH = rf"(?:{alternatives([name.capitalize() for name in t.MONTH_FORMS])})"
UNIT = alternatives(list(t.UNITS))
CURRENCY = alternatives(list(t.CURRENCIES))
CURRENCY_SIGN = alternatives([sign for sign in t.CURRENCIES if not sign.isalpha()])
LARGE = "|".join(t.MAGNITUDE_WORDS)
MAGNITUDE = rf"(?:\s?(?P<word>{LARGE})|\s?(?P<letter>{alternatives(list(t.MAGNITUDES))})(?![\w]))"
FRACTION_SIGNS = "".join(t.VULGAR)
ROMAN = r"(?P<roman>[IVXLCDM]+)"


def number_of(text: str, *, money: bool = False) -> n.Number | None:
    return n.parse(text, money=money)


def magnitude(found: re.Match[str]) -> str:
    groups = found.groupdict()
    if groups.get("word"):
        return f" {groups['word']}"
    if groups.get("letter"):
        return f" {t.MAGNITUDES[groups['letter']]}"
    return ""


def counted(number: n.Number, names: tuple[str, str]) -> str:
    return f"{number.words()} {names[0] if number.is_one else names[1]}"


PER = r"(?:/(?P<per>[A-Za-z]+))?"


def per(found: re.Match[str]) -> str:
    per = found.groupdict().get("per")
    if not per:
        return ""
    named = {"mo": "month", "yr": "year", "hr": "hour", "h": "hour", "kg": "kilogram", "lb": "pound", "l": "liter",
             "L": "liter", "d": "day", "wk": "week", "m": "meter", "kWh": "kilowatt-hour"}.get(per, per)  # fmt: skip
    return f" per {named}"


def dotted_numbers(text: str) -> str:
    return " point ".join(n.cardinal(part) for part in text.split("."))
