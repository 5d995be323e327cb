"""Numbers to English words. Digits come in as they are written, with either decimal convention.

``1,234.5`` and ``1.234,5`` are both one thousand two hundred thirty-four point five. Where one separator stands alone,
three digits after a comma are thousands, any other count of them decimals (``27,50``); a point is a decimal point, but
in amounts of money, which have no three decimals.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from num2words import num2words

MOST_DIGITS = 15
"""Longer whole numbers are read digit by digit."""

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_FRACTIONS = {2: "half", 4: "quarter"}
_GROUPED = {
    ",": re.compile(r"\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}"),
    ".": re.compile(r"\d{1,3}(?:\.\d{3})+"),
}


class Number(NamedTuple):
    """A number as its digits: whole part, and decimals if any."""

    whole: str
    decimals: str | None = None

    @property
    def value(self) -> int:
        """The whole part."""
        return int(self.whole or "0")

    @property
    def is_one(self) -> bool:
        """True if what is counted stands in the singular."""
        return self.decimals is None and self.value == 1

    def words(self) -> str:
        """As it is read: ``three point one four``."""
        if self.decimals is None:
            return cardinal(self.whole)
        whole = f"{cardinal(self.whole)} " if self.whole else ""
        return f"{whole}point {digits(self.decimals)}"


def parse(text: str, *, money: bool = False) -> Number | None:
    """What a run of digits and separators means; None if it is no one number (``1,2,3``, ``2.0.1``)."""
    if re.fullmatch(r"\d+", text):
        return Number(text)
    if re.fullmatch(r"\.\d+", text):
        return Number("", text[1:])
    if not re.fullmatch(r"\d+(?:[.,]\d+)+", text):
        return None
    last = max(text.rfind("."), text.rfind(","))
    mark, other = text[last], "," if text[last] == "." else "."
    if other in text:
        whole, decimals = text[:last], text[last + 1 :]
        return Number(whole.replace(other, ""), decimals) if _GROUPED[other].fullmatch(whole) else None
    grouped = _GROUPED[mark].fullmatch(text) is not None and not text.startswith("0")
    if grouped and (mark == "," or money or text.count(mark) > 1):
        return Number(text.replace(mark, ""))
    if text.count(mark) > 1:
        return None
    whole, _, decimals = text.partition(mark)
    return Number(whole, decimals)


@lru_cache(maxsize=4096)
def cardinal(written: str | int) -> str:
    """``two hundred thirty-four``; from more than :data:`MOST_DIGITS` digits on, and with leading zeros, by digits."""
    text = str(written)
    if len(text) > MOST_DIGITS or (len(text) > 1 and text[0] == "0"):
        return digits(text)
    return str(num2words(int(text))).replace(",", "").replace(" and ", " ")


@lru_cache(maxsize=1024)
def ordinal(number: int) -> str:
    """``twenty-third``."""
    if number > 10**MOST_DIGITS:
        return digits(str(number))
    return str(num2words(number, to="ordinal")).replace(",", "").replace(" and ", " ")


def digits(text: str) -> str:
    """Each digit by itself; anything else in between is a pause: ``010-99`` is ``zero one zero, nine nine``."""
    groups = re.findall(r"\d+", text)
    return ", ".join(" ".join(DIGITS[int(digit)] for digit in group) for group in groups)


def year(number: int) -> str:
    """``nineteen eighty-four``, ``nineteen oh five``, ``two thousand five``, ``nineteen hundred``."""
    century, rest = divmod(number, 100)
    if not 1000 <= number <= 2999 or number % 1000 < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def looks_like_year(text: str) -> bool:
    """True for four digits that are read in pairs where nothing is counted with them."""
    return re.fullmatch(r"1[1-9]\d\d|20\d\d", text) is not None


def plural_years(text: str) -> str | None:
    """``1990s`` (without its s) to ``nineteen nineties``; None if it is no decade or century."""
    number = int(text)
    rest = number % 100
    if rest % 10:
        return None
    if rest == 0:
        return f"{year(number)}s" if len(text) == 4 else None
    tens = f"{cardinal(rest).removesuffix('y')}ies" if rest > 10 else "tens"
    return tens if len(text) == 2 else f"{cardinal(number // 100)} {tens}"


def fraction(top: int, bottom: int) -> str:
    """``three quarters``, ``one half``, ``seven eighths``; anything unusual as ``22 over 7``."""
    if bottom < 2 or bottom > 100 or top > 100:
        return f"{cardinal(top)} over {cardinal(bottom)}"
    name = _FRACTIONS.get(bottom) or ordinal(bottom)
    if top != 1:
        name = "halves" if bottom == 2 else f"{name}s"
    return f"{cardinal(top)} {name}"


def roman(text: str) -> int | None:
    """Value of a well-formed roman numeral; None if it is none."""
    if not text or not re.fullmatch(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})", text):
        return None
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}[letter] for letter in text]
    return sum(
        -value if following > value else value for value, following in zip(values, [*values[1:], 0], strict=True)
    )
