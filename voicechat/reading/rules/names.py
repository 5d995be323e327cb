"""Names with roman numerals, titles, numbered things."""

from __future__ import annotations

import re

from voicechat.reading import numbers as n
from voicechat.reading import tables as t
from voicechat.reading.rules.rule import DASH, ROMAN, Rules, alternatives, dotted_numbers

RULES = Rules()


@RULES.add(r"(?P<name>[A-Z][\w’'-]+) " + ROMAN + r"(?P<own>['’]s)?")
def _roman_name(found: re.Match[str]) -> str | None:
    name, text = found["name"], found["roman"]
    value = n.roman(text)
    if value is None or value == 0:
        return None
    own = found["own"] or ""
    pronoun = text == "I" and not own and not found["tail"]
    if name in t.ROMAN_ORDINAL and not (pronoun and name in {"King", "Queen", "Pope"}):
        return f"{name} the {n.ordinal(value)}{own}"
    if name in t.ROMAN_CARDINAL and not (pronoun and name not in _MORE_LIKELY_ONE):
        return f"{name} {n.cardinal(value)}{own}"
    if len(text) > 1 and value < (100 if len(text) > 3 else 40) and name.isalpha() and name not in NO_NAMES:
        return f"{name} {n.cardinal(value)}{own}"
    return None


_MORE_LIKELY_ONE = frozenset("Chapter Part Act Volume War Type Phase Section Article Appendix Class".split())
"""After these an "I" is a number; after "Book" or "Mark" somebody speaks of himself."""
NO_NAMES = frozenset("The A An In On At For And Or But If So To Of By As Is It We He She I My".split())


@RULES.add(r"(?P<mark>World War) " + ROMAN)
def _world_war(found: re.Match[str]) -> str | None:
    value = n.roman(found["roman"])
    return None if not value else f"{found['mark']} {n.cardinal(value)}"


@RULES.add(r"(?P<word>chapter|part|act|scene|volume|book|section|phase|type|level|class|stage|grade) " + ROMAN)
def _roman_numbered(found: re.Match[str]) -> str | None:
    value = n.roman(found["roman"])
    return None if not value else f"{found['word']} {n.cardinal(value)}"


@RULES.add(r"(?P<roman>M[MDCLXVI]{3,})")
def _roman_year(found: re.Match[str]) -> str | None:
    value = n.roman(found["roman"])
    return None if not value else n.year(value)


@RULES.add(rf"(?P<title>{alternatives(list(t.TITLES))})\.?(?= [A-Z])")
def _title(found: re.Match[str]) -> str | None:
    return None if found["tail"] else t.TITLES[found["title"]]


@RULES.add(rf"(?P<what>{alternatives(list(t.NUMBERED))})\. ?#?(?P<num>\d+(?:\.\d+)?)(?:{DASH}(?P<to>\d+))?")
def _numbered(found: re.Match[str]) -> str:
    said = t.NUMBERED[found["what"]]
    if found["what"][0].isupper() or found["lead"]:
        said = said.capitalize() if found["what"][0].isupper() else said
    said += f" {dotted_numbers(found['num'])}"
    return said + (f" to {n.cardinal(int(found['to']))}" if found["to"] else "")


@RULES.add(r"(?:#|№\s?)(?P<num>\d+)")
def _hash_number(found: re.Match[str]) -> str:
    return f"number {n.cardinal(found['num'])}"
