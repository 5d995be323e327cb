"""Telephone numbers, addresses of machines, versions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from voicechat.reading import numbers as n
from voicechat.reading.rules.rule import WINDOW, Rules, dotted_numbers, number_of

RULES = Rules()


@RULES.add(r"(?P<num>\+\d{1,3}(?:[ \-./]?\(?\d{1,5}\)?){2,6})")
def _phone_international(found: re.Match[str]) -> str | None:
    if not 7 <= len(re.sub(r"\D", "", found["num"])) <= 15 or found["num"].count(" ") >= WINDOW:
        return None
    return f"plus {n.digits(found['num'])}"


@RULES.add(r"(?P<num>(?:1[-. ])?\(\d{3}\)\s?\d{3}[-. ]\d{4})")
def _phone_area(found: re.Match[str]) -> str:
    return n.digits(found["num"])


@RULES.add(r"(?P<num>(?:1[-.])?(?:\d{3}[-.])?\d{3}[-.]\d{4})")
def _phone(found: re.Match[str]) -> str | None:
    return None if re.fullmatch(r"\d{3}\.\d{4}", found["num"]) else n.digits(found["num"])


@RULES.add(r"(?P<ip>\d{1,3}(?:\.\d{1,3}){3})(?:(?P<port>:\d{1,5})|(?P<mask>/\d{1,2}))?")
def _ip(found: re.Match[str]) -> str | None:
    parts = found["ip"].split(".")
    if any(int(part) > 255 or (len(part) > 1 and part[0] == "0") for part in parts):
        return None
    said = " dot ".join(n.digits(part) for part in parts)
    if found["port"]:
        said += f" port {n.digits(found['port'][1:])}"
    if found["mask"]:
        said += f" slash {n.cardinal(int(found['mask'][1:]))}"
    return said


@RULES.add(r"(?P<v>[vV]\.?)(?P<num>\d+(?:\.\d+)*)(?P<more>(?:-?(?:alpha|beta|rc|dev|post)\.?\d*)?)")
def _version(found: re.Match[str]) -> str:
    return f"version {dotted_numbers(found['num'])}{_suffix(found['more'])}"


@RULES.add(r"(?P<num>\d+(?:\.\d+){2,})(?P<more>(?:-?(?:alpha|beta|rc|dev|post)\.?\d*)?)")
def _bare_version(found: re.Match[str]) -> str | None:
    parts = found["num"].split(".")
    if len(parts) == 3 and _plausible_date(parts) and not found["more"]:
        return None
    if number_of(found["num"], money=True) is not None and not found["more"]:
        return None
    return f"{dotted_numbers(found['num'])}{_suffix(found['more'])}"


def _plausible_date(parts: Sequence[str]) -> bool:
    return len(parts[2]) == 4 and 1 <= int(parts[0]) <= 31 and 1 <= int(parts[1]) <= 12


def _suffix(text: str) -> str:
    if not text:
        return ""
    name, number = re.fullmatch(r"-?([a-z]+)\.?(\d*)", text).groups()  # type: ignore[union-attr]
    name = {"rc": "release candidate", "dev": "dev", "post": "post"}.get(name, name)
    return f" {name}" + (f" {n.cardinal(int(number))}" if number else "")
