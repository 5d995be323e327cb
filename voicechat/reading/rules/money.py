"""Amounts of money, before or after their sign, in ranges, with cents."""

from __future__ import annotations

import re

from voicechat.reading import numbers as n
from voicechat.reading import tables as t
from voicechat.reading.rules.rule import (
    CURRENCY,
    CURRENCY_SIGN,
    DASH,
    MAGNITUDE,
    NUM,
    PER,
    SIGN,
    SIGNS_READ,
    Rules,
    counted,
    magnitude,
    number_of,
    per,
)

RULES = Rules()


def money(number: n.Number, currency: str, magnitude: str = "") -> str:
    """``twenty-seven euros and fifty cents``."""
    one, many, small_one, small_many = t.CURRENCIES[currency]
    if magnitude:
        return f"{number.words()}{magnitude} {many}"
    decimals = number.decimals
    if decimals is not None and len(decimals) == 2:
        cents = int(decimals)
        parts = []
        if number.value or not cents:
            parts.append(f"{n.cardinal(number.value)} {one if number.value == 1 else many}")
        if cents:
            parts.append(f"{n.cardinal(cents)} {small_one if cents == 1 else small_many}")
        return " and ".join(parts)
    return f"{number.words()} {one if number.is_one else many}"


@RULES.add(rf"(?P<a>{NUM}){DASH}(?P<b>{NUM}){MAGNITUDE}?\s?(?P<cur>{CURRENCY}){PER}")
@RULES.add(rf"(?P<cur>{CURRENCY})\s?(?P<a>{NUM}){DASH}(?:{CURRENCY_SIGN})?(?P<b>{NUM}){MAGNITUDE}?{PER}")
def _money_range(found: re.Match[str]) -> str | None:
    low, high = number_of(found["a"], money=True), number_of(found["b"], money=True)
    if low is None or high is None:
        return None
    return f"{low.words()} to {money(high, found['cur'], magnitude(found))}{per(found)}"


@RULES.add(rf"(?P<sign>{SIGN})(?P<cur>{CURRENCY})\s?(?P<minus>[-−]?)(?P<num>{NUM}){MAGNITUDE}?{PER}")
def _money(found: re.Match[str]) -> str | None:
    number = number_of(found["num"], money=True)
    if number is None:
        return None
    sign = SIGNS_READ[found["sign"] or found["minus"]]
    return f"{sign}{money(number, found['cur'], magnitude(found))}{per(found)}"


@RULES.add(rf"(?P<sign>{SIGN})(?P<num>{NUM}){MAGNITUDE}?\s?(?P<cur>{CURRENCY}){PER}")
def _money_after(found: re.Match[str]) -> str | None:
    number = number_of(found["num"], money=True)
    if number is None:
        return None
    return f"{SIGNS_READ[found['sign']]}{money(number, found['cur'], magnitude(found))}{per(found)}"


@RULES.add(rf"(?P<num>{NUM})\s?(?P<cur>¢)")
def _small_change(found: re.Match[str]) -> str | None:
    number = number_of(found["num"])
    return None if number is None else counted(number, t.SMALL_CHANGE["¢"])
