"""Fractions, ordinals, ranges and plain numbers: what no other rule took."""

from __future__ import annotations

import re

from voicechat.reading import numbers as n
from voicechat.reading.rules.measures import mixed
from voicechat.reading.rules.rule import (
    DASH,
    FRACTION_SIGNS,
    LARGE,
    MAGNITUDE,
    NUM,
    SIGN,
    SIGNS_READ,
    Rules,
    magnitude,
    number_of,
)

RULES = Rules()


@RULES.add(rf"(?P<sign>{SIGN})(?P<num>\d*\s?[{FRACTION_SIGNS}]|\d+[ -]\d{{1,3}}/\d{{1,3}})")
def _mixed_number(found: re.Match[str]) -> str | None:
    said = mixed(found["num"])
    return None if said is None else f"{SIGNS_READ[found['sign']]}{said}"


@RULES.add(r"(?P<sign>[-−]?)(?P<a>\d{1,3})/(?P<b>\d{1,3})(?P<th>ths?|rds?|nds?)?")
def _fraction(found: re.Match[str]) -> str | None:
    top, bottom = int(found["a"]), int(found["b"])
    if bottom == 0:
        return f"{n.cardinal(top)} over zero"
    if top == bottom:
        return f"{n.cardinal(top)} {n.cardinal(bottom)}"
    return f"{SIGNS_READ[found['sign']]}{n.fraction(top, bottom)}"


@RULES.add(r"(?P<num>\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)")
def _ordinal(found: re.Match[str]) -> str:
    return n.ordinal(int(found["num"].replace(",", "")))


@RULES.add(r"(?P<num>\d+(?:[.,]\d+)?)x")
def _fold(found: re.Match[str]) -> str | None:
    number = number_of(found["num"])
    return None if number is None else f"{number.words()} times"


@RULES.add(rf"(?P<sign>{SIGN})(?P<a>{NUM})(?:{DASH})(?P<b>{NUM}){MAGNITUDE}?(?P<percent>\s?%)?")
def _range(found: re.Match[str]) -> str | None:
    if found["a"].startswith("0") and len(found["a"]) > 1:
        return None
    low, high = number_of(found["a"]), number_of(found["b"])
    if low is None or high is None:
        return None
    return f"{SIGNS_READ[found['sign']]}{low.words()} to {high.words()}{magnitude(found)}" + (
        " percent" if found["percent"] else ""
    )


@RULES.add(r"(?P<num>\d+(?:-\d+){2,})")
def _hyphenated_digits(found: re.Match[str]) -> str:
    return n.digits(found["num"])


@RULES.add(rf"(?P<sign>{SIGN})(?P<num>{NUM})(?:\s(?P<word>{LARGE})|(?P<letter>k|K|M|B|T|bn|mn|tn)(?![\w]))")
def _large(found: re.Match[str]) -> str | None:
    number = number_of(found["num"])
    return None if number is None else f"{SIGNS_READ[found['sign']]}{number.words()}{magnitude(found)}"


@RULES.add(r"(?P<list>\d+(?:,\d+)+)")
def _digit_list(found: re.Match[str]) -> str | None:
    if n.parse(found["list"]) is not None:
        return None
    return ", ".join(n.cardinal(part) for part in found["list"].split(","))


@RULES.add(rf"(?P<sign>{SIGN})(?P<num>{NUM})(?P<plus>\+?)")
def _plain(found: re.Match[str]) -> str | None:
    text = found["num"]
    number = number_of(text)
    if number is None:
        return None
    said = n.year(number.value) if n.looks_like_year(text) and not found["sign"] else number.words()
    return f"{SIGNS_READ[found['sign']]}{said}" + (" plus" if found["plus"] else "")
