"""Expressions: operators, powers and roots between numbers and single letters."""

from __future__ import annotations

import re

from voicechat.reading import numbers as n
from voicechat.reading import tables as t
from voicechat.reading.rules.rule import NUM, Rules, number_of

RULES = Rules()


_OPERATORS = {
    "+": "plus", "-": "minus", "−": "minus", "–": "minus", "*": "times", "×": "times", "·": "times", "÷": "divided by",
    "/": "divided by", "=": "equals", "<": "is less than", ">": "is greater than", "≤": "is at most",
    "≥": "is at least", "≠": "is not equal to", "≈": "is approximately", "^": "to the power of", "±": "plus or minus",
    "%": "percent",
}  # fmt: skip
_TERM = rf"(?:√?\(?-?(?:{NUM}|[a-z]|π)(?:[²³⁰¹⁴-⁹ⁿ⁻]+|\^\(?-?\w+\)?)?\)?!?%?)"


@RULES.add(rf"(?P<expr>{_TERM}(?:[+×·÷=<>≤≥≠≈*^±−]|(?<=[\d)²³])[/-](?=[\d(a-z]))(?:{_TERM}|[-+*/×÷=<>≤≥≠≈·^±−])*)")
def _expression(found: re.Match[str]) -> str | None:
    text = found["expr"]
    if re.fullmatch(rf"{NUM}[-–−]{NUM}|\d+/\d+|[a-z]/[a-z]|\d+(?:-\d+)+", text):
        return None
    said: list[str] = []
    for piece in re.findall(rf"√|{NUM}|[a-zπ]|[²³⁰¹⁴-⁹ⁿ⁻]+|\S", text):
        if re.fullmatch(NUM, piece):
            number = n.parse(piece)
            if number is None:
                return None
            said.append(number.words())
        elif re.fullmatch(r"[²³⁰¹⁴-⁹ⁿ⁻]+", piece):
            said.append(power(piece))
        elif piece == "√":
            said.append("square root of")
        elif piece == "π":
            said.append("pi")
        elif piece == "-" and (not said or said[-1] in _OPERATORS.values()):
            said.append("minus")
        elif piece in _OPERATORS:
            said.append(_OPERATORS[piece])
        elif piece == "!":
            said.append("factorial")
        elif piece in "()":
            continue
        else:
            said.append(piece)
    joined = " ".join(said)
    return re.sub(
        r"to the power of two\b(?! point)", "squared", re.sub(r"to the power of three\b(?! point)", "cubed", joined)
    )


def power(superscript: str) -> str:
    """``²`` is ``squared``, ``⁻³`` ``to the power of minus three``."""
    text = superscript.translate(t.SUPERSCRIPTS).replace("ⁿ", "n")
    if text in ("2", "3"):
        return "squared" if text == "2" else "cubed"
    minus = "minus " if text.startswith("-") else ""
    bare = text.lstrip("+-")
    return f"to the power of {minus}{n.cardinal(bare) if bare.isdigit() else bare}"


@RULES.add(rf"(?P<a>{NUM}) [-−–] (?P<b>{NUM}) =")
def _difference(found: re.Match[str]) -> str | None:
    first, second = number_of(found["a"]), number_of(found["b"])
    return None if first is None or second is None else f"{first.words()} minus {second.words()} equals"
