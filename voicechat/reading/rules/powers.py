"""Powers of ten, as science and computers write them."""

from __future__ import annotations

import re

from voicechat.reading import numbers as n
from voicechat.reading import tables as t
from voicechat.reading.rules.rule import NUM, SIGNS_READ, Rules, number_of

RULES = Rules()


@RULES.add(rf"(?P<sign>[-−+]?)(?P<num>{NUM})\s?[×x·]\s?10(?:\^(?P<caret>[-−+]?\d+)|(?P<sup>[⁰¹²³⁴-⁹⁻⁺]+))")
def _scientific(found: re.Match[str]) -> str | None:
    number = number_of(found["num"])
    if number is None:
        return None
    exponent = (found["caret"] or found["sup"].translate(t.SUPERSCRIPTS)).replace("−", "-")
    return f"{SIGNS_READ[found['sign']]}{number.words()} times ten {_to_the(exponent)}"


@RULES.add(rf"(?P<sign>[-−+]?)(?P<num>{NUM})[eE](?P<exp>[-−+]?\d{{1,3}})")
def _exponent(found: re.Match[str]) -> str | None:
    number = number_of(found["num"])
    if number is None:
        return None
    return f"{SIGNS_READ[found['sign']]}{number.words()} times ten {_to_the(found['exp'].replace('−', '-'))}"


def _to_the(exponent: str) -> str:
    minus = "minus " if exponent.startswith("-") else ""
    return f"to the power of {minus}{n.cardinal(int(exponent.lstrip('+-')))}"
