"""Numbers with units, in ranges and dimensions."""

from __future__ import annotations

import re

from voicechat.reading import numbers as n
from voicechat.reading import tables as t
from voicechat.reading.rules.rule import (
    DASH,
    FRACTION_SIGNS,
    MAGNITUDE,
    NUM,
    SIGN,
    SIGNS_READ,
    UNIT,
    Rules,
    counted,
    magnitude,
    number_of,
    per,
)

RULES = Rules()


@RULES.add(
    r"(?P<ft>\d{1,3})\s?(?:′|'|’|ft\.?|feet)\s?(?P<in>\d{1,2}(?:[.,]\d+)?|\d{1,2}[½¼¾])\s?(?:″|\"|”|''|’’|in\.?|inches)"
)
def _feet(found: re.Match[str]) -> str | None:
    inches = found["in"]
    feet = f"{n.cardinal(int(found['ft']))} {'foot' if int(found['ft']) == 1 else 'feet'}"
    said = mixed(inches)
    return None if said is None else f"{feet} {said} {'inch' if inches == '1' else 'inches'}"


@RULES.add(r"(?P<deg>\d{1,3})°\s?(?P<min>\d{1,2})[′'’]\s?(?:(?P<sec>\d{1,2}(?:\.\d+)?)[″\"”]\s?)?(?P<dir>[NSEW])?")
def _angle(found: re.Match[str]) -> str:
    said = f"{n.cardinal(int(found['deg']))} degrees {n.cardinal(int(found['min']))} minutes"
    if found["sec"] and (seconds := number_of(found["sec"])) is not None:
        said += f" {seconds.words()} seconds"
    directions = {"N": " north", "S": " south", "E": " east", "W": " west"}
    return said + directions.get(found["dir"] or "", "")


def mixed(text: str) -> str | None:
    """``5½``, ``5 1/2`` or ``5.5`` in words; None if it is no number."""
    if found := re.fullmatch(rf"(\d*)\s?([{FRACTION_SIGNS}])", text):
        top, bottom = t.VULGAR[found.group(2)]
    elif found := re.fullmatch(r"(\d+)[ -](\d{1,3})/(\d{1,3})", text):
        top, bottom = int(found.group(2)), int(found.group(3))
    else:
        number = n.parse(text)
        return None if number is None else number.words()
    part = n.fraction(top, bottom)
    if not found.group(1):
        return part
    part = part if top != 1 else ("a half" if bottom == 2 else f"a {part.removeprefix('one ')}")
    if part.startswith("a eighth"):
        part = f"an {part.removeprefix('a ')}"
    return f"{n.cardinal(found.group(1))} and {part}"


_AMOUNT = rf"(?:\d+[ -]\d{{1,3}}/\d{{1,3}}|\d*\s?[{FRACTION_SIGNS}]|{NUM})"


@RULES.add(
    rf"(?P<sign>{SIGN})(?P<a>{NUM})\s?(?:{UNIT})?\s?(?:[x×*]|by)\s?(?P<b>{NUM})\s?(?:{UNIT})?(?:\s?[x×]\s?(?P<c>{NUM}))?\s?(?P<unit>{UNIT})(?![\w])"
)
def _dimensions(found: re.Match[str]) -> str | None:
    parts = [number_of(found[name]) for name in ("a", "b", "c") if found[name]]
    if any(part is None for part in parts):
        return None
    return " by ".join(part.words() for part in parts if part) + f" {t.UNITS[found['unit']][1]}"


@RULES.add(
    rf"(?P<sign>{SIGN})(?P<a>{NUM})\s?(?:{UNIT})?(?:{DASH}| to )(?P<minus>[-−]?)(?P<b>{NUM})"
    rf"{MAGNITUDE}?\s?(?P<unit>{UNIT})(?![\w])"
)
def _measure_range(found: re.Match[str]) -> str | None:
    low, high = number_of(found["a"]), number_of(found["b"])
    if low is None or high is None:
        return None
    sign = SIGNS_READ[found["sign"]]
    minus = "minus " if found["minus"] else ""
    return f"{sign}{low.words()} to {minus}{high.words()}{magnitude(found)} {t.UNITS[found['unit']][1]}"


@RULES.add(rf"(?P<sign>{SIGN})(?P<num>{_AMOUNT})(?P<gap>[\s-]?)(?P<unit>{UNIT})(?:/(?P<per>[A-Za-z]+))?(?![\w°])")
def _measure(found: re.Match[str]) -> str | None:
    unit, text = found["unit"], found["num"]
    if unit in (t.ONLY_ATTACHED if found["gap"] else t.NEVER_ATTACHED):
        return None
    number = number_of(text)
    said = mixed(text) if number is None else number.words()
    if said is None:
        return None
    one, many = t.UNITS[unit]
    singular = number.is_one if number is not None else re.fullmatch(rf"[{FRACTION_SIGNS}]", text) is not None
    if number is None and singular:
        return f"{SIGNS_READ[found['sign']]}{said} {one}"
    rate = per(found)
    if found["gap"] == "-":
        return f"{SIGNS_READ[found['sign']]}{said}-{one}"
    return f"{SIGNS_READ[found['sign']]}{said} {one if singular else many}{rate}"


@RULES.add(rf"(?P<a>{NUM})\s?[x×]\s?(?P<b>{NUM})(?:\s?[x×]\s?(?P<c>{NUM}))?")
def _by(found: re.Match[str]) -> str | None:
    parts = [n.year(int(text)) if re.fullmatch(r"\d{4}", text) else (number := number_of(text)) and number.words()
             for text in (found["a"], found["b"], found["c"]) if text]  # fmt: skip
    word = " times " if "×" in found.group() else " by "
    return word.join(part for part in parts if part) if all(parts) else None


@RULES.add(rf"(?P<sign>{SIGN})(?P<num>{NUM})\s?(?P<in>in\.)(?=\s[a-z])")
def _inches(found: re.Match[str]) -> str | None:
    number = number_of(found["num"])
    return None if number is None else f"{SIGNS_READ[found['sign']]}{counted(number, ('inch', 'inches'))}"


@RULES.add(r"(?P<num>\d+(?:[.,]\d+)?)\s?[\"″”](?=\s|$)")
def _inch_marks(found: re.Match[str]) -> str | None:
    number = number_of(found["num"])
    return None if number is None or found["lead"] else counted(number, ("inch", "inches"))
