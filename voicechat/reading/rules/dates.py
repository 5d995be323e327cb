"""Dates, years, times of day and ratios written like them."""

from __future__ import annotations

import re

from voicechat.reading import numbers as n
from voicechat.reading import tables as t
from voicechat.reading.rules.rule import DASH, LEAD, MONTH, Rules

RULES = Rules()


def _day(number: str) -> int | None:
    day = int(number)
    return day if 1 <= day <= 31 else None


def _month_name(text: str) -> str:
    return t.MONTH_FORMS[text.rstrip(".").lower()]


@RULES.add(
    r"(?P<y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})(?:T(?P<hh>\d{2}):(?P<mm>\d{2})(?::\d{2}(?:\.\d+)?)?(?P<z>Z|[+-]\d{2}:?\d{2})?)?"
)
def _iso_date(found: re.Match[str]) -> str | None:
    said = _month_first(int(found["m"]), int(found["d"]), found["y"])
    if said is None or not found["hh"]:
        return said
    clock = _clock(int(found["hh"]), int(found["mm"]))
    return None if clock is None else f"{said}, {clock}" + (" U T C" if found["z"] == "Z" else "")


@RULES.add(r"(?P<a>\d{1,2})/(?P<b>\d{1,2})/(?P<y>\d{4}|\d{2})")
def _slashed_date(found: re.Match[str]) -> str | None:
    month, day = int(found["a"]), int(found["b"])
    if month > 12:
        month, day = day, month
    return _month_first(month, day, found["y"])


@RULES.add(r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})")
def _dotted_date(found: re.Match[str]) -> str | None:
    return _month_first(int(found["m"]), int(found["d"]), found["y"])


def _month_first(month: int, day: int, year: str | None) -> str | None:
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    return f"{t.MONTHS[month - 1]} {n.ordinal(day)}" + (f", {_year(year)}" if year else "")


def _year(text: str) -> str:
    if len(text) == 2:
        text = ("19" if int(text) > 30 else "20") + text
    return n.year(int(text))


@RULES.add(rf"(?P<m>{MONTH})\.? (?P<d>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y>\d{{4}})(?!:)")
def _month_day_year(found: re.Match[str]) -> str | None:
    day = _day(found["d"])
    return None if day is None else f"{_month_name(found['m'])} {n.ordinal(day)}, {_year(found['y'])}"


@RULES.add(rf"(?P<m>{MONTH})\.? (?P<d>\d{{1,2}}){DASH}(?P<e>\d{{1,2}})(?:,? (?P<y>\d{{4}}))?")
def _month_days(found: re.Match[str]) -> str | None:
    if _day(found["d"]) is None or _day(found["e"]) is None:
        return None
    year = f", {_year(found['y'])}" if found["y"] else ""
    return f"{_month_name(found['m'])} {n.ordinal(int(found['d']))} to {n.ordinal(int(found['e']))}{year}"


@RULES.add(rf"(?P<the>the )?(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.)? (?:of )?(?P<m>{MONTH})\.?(?:,? (?P<y>\d{{4}}))?")
def _day_month(found: re.Match[str]) -> str | None:
    day = _day(found["d"])
    if day is None:
        return None
    year = f", {_year(found['y'])}" if found["y"] else ""
    return f"the {n.ordinal(day)} of {_month_name(found['m'])}{year}"


@RULES.add(rf"(?P<m>{MONTH})\.? (?P<d>\d{{1,2}})(?:st|nd|rd|th)?")
def _month_day(found: re.Match[str]) -> str | None:
    day = _day(found["d"])
    if day is None or (found["m"] == "May" and found["lead"]):
        return None
    return f"{_month_name(found['m'])} {n.ordinal(day)}"


@RULES.add(rf"(?P<m>{MONTH})\.? (?P<y>1[1-9]\d\d|20\d\d)")
def _month_year(found: re.Match[str]) -> str:
    return f"{_month_name(found['m'])} {_year(found['y'])}"


_HALF = r"(?P<half>[AaPp])\.?\s?[Mm]\b\.?"


@RULES.add(
    rf"(?P<h>\d{{1,2}})(?::(?P<m>\d{{2}}))?\s?(?:[AaPp]\.?[Mm]\.?)?{DASH}(?P<h2>\d{{1,2}})(?::(?P<m2>\d{{2}}))?\s?{_HALF}"
)
def _hours_half(found: re.Match[str]) -> str | None:
    first = _clock(int(found["h"]), int(found["m"] or 0), bare=True)
    second = _clock(int(found["h2"]), int(found["m2"] or 0), bare=True)
    if first is None or second is None:
        return None
    earlier = re.match(rf"{LEAD}[\d:]+\s?([AaPp])\.?[Mm]", found.group())
    half = f" {earlier.group(1).lower()}.m." if earlier else ""
    return f"{first}{half} to {second} {found['half'].lower()}.m{_last_stop(found)}"


@RULES.add(rf"(?P<h>\d{{1,2}}):(?P<m>\d{{2}}){DASH}(?P<h2>\d{{1,2}}):(?P<m2>\d{{2}})")
def _hours(found: re.Match[str]) -> str | None:
    first = _clock(int(found["h"]), int(found["m"]))
    second = _clock(int(found["h2"]), int(found["m2"]))
    return None if first is None or second is None else f"{first} to {second}"


@RULES.add(rf"(?P<h>\d{{1,2}})(?::(?P<m>\d{{2}}))?(?::(?P<s>\d{{2}}))?\s?{_HALF}")
def _time_half(found: re.Match[str]) -> str | None:
    if int(found["h"]) > 12:
        return None
    clock = _clock(int(found["h"]), int(found["m"] or 0), bare=True)
    return None if clock is None else f"{clock} {found['half'].lower()}.m{_last_stop(found)}"


def _last_stop(found: re.Match[str]) -> str:
    return "" if found["tail"].startswith(".") else "."


@RULES.add(r"(?P<h>\d{1,2}):(?P<m>\d{2})(?::(?P<s>\d{2}))?")
def _time(found: re.Match[str]) -> str | None:
    clock = _clock(int(found["h"]), int(found["m"]), bare=bool(found["s"]))
    if clock is None or not found["s"]:
        return clock if clock is not None else _ratio(found)
    seconds = int(found["s"])
    if seconds > 59:
        return None
    return f"{clock} and {n.cardinal(seconds)} second{'' if seconds == 1 else 's'}"


def _ratio(found: re.Match[str]) -> str:
    return f"{n.cardinal(int(found['h']))} to {n.cardinal(int(found['m']))}"


def _clock(hour: int, minute: int, *, bare: bool = False) -> str | None:
    if hour > 24 or minute > 59:
        return None
    if minute == 0:
        return n.cardinal(hour) if bare else ("midnight" if hour in (0, 24) else f"{n.cardinal(hour)} o'clock")
    return f"{n.cardinal(hour)} {'oh ' if minute < 10 else ''}{n.cardinal(minute)}"


@RULES.add(r"(?P<a>\d{1,3}):(?P<b>\d{1,3})(?::(?P<c>\d{1,3}))?")
def _ratios(found: re.Match[str]) -> str:
    return " to ".join(n.cardinal(int(part)) for part in (found["a"], found["b"], found["c"]) if part)


@RULES.add(r"(?:(?P<pre>the|mid|early|late)[ -])?['’]?(?P<y>1[1-9]\d0|20\d0|\d0)['’]?s")
def _decade(found: re.Match[str]) -> str | None:
    said = n.plural_years(found["y"])
    return None if said is None else f"{found['pre'] + ' ' if found['pre'] else ''}{said}"


@RULES.add(r"(?P<a>1[1-9]\d\d|20\d\d)[-–—/](?P<b>\d{4}|\d{2})")
def _years(found: re.Match[str]) -> str | None:
    second = found["b"]
    if len(second) == 4 and not n.looks_like_year(second):
        return None
    said = n.year(int(second)) if len(second) == 4 else f"{'oh ' if second[0] == '0' else ''}{n.cardinal(int(second))}"
    return f"{n.year(int(found['a']))} to {said}"


@RULES.add(r"(?P<y>\d{1,4})\s?(?P<era>B\.?C\.?E?\.?|A\.?D\.?|CE)(?![a-z])")
def _era(found: re.Match[str]) -> str:
    year = int(found["y"])
    letters = " ".join(letter for letter in found["era"] if letter.isalpha())
    return f"{n.year(year) if year >= 1000 else n.cardinal(year)} {letters}"
