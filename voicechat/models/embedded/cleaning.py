"""One word of written text, as a chat model writes it, to words that can be read aloud."""

from __future__ import annotations

import html
import re
import unicodedata

MAX_WORD = 48
"""Longer runs without white space are cut, so that no word costs more than a moment."""

_KEEP = frozenset("“”‘’—–…°£€¥¢§±×÷½¼¾²³µ→™®©")
_URL = re.compile(r"(?i)(?:[a-z][a-z0-9+.-]*://|www\.)([^\s/?#]+)\S*")
_DOMAIN = re.compile(r"(?i)^((?:[a-z0-9-]+\.)+(?:com|org|net|edu|gov|io|co|uk|de|ai|app|dev|info))(?:/\S*)?$")
_EMAIL = re.compile(r"^([\w.+-]+)@((?:[\w-]+\.)+[A-Za-z]{2,})$")
_LINK_TARGET = re.compile(r"\]\([^)]*\)?")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_STARS = re.compile(r"(?<=\d)\*(?=\d)")
_LONG_DIGITS = re.compile(r"[\d,.]*\d{13,}[\d,.]*")
_EDGE_MARKS = re.compile(r"^[#>]+(?=\D|$)|^[-+•](?=[A-Za-z\"“])")
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|[A-Za-z]{2,8});")
_TRAIL = re.compile(r"[.,;:!?…\"”’)]+$")
_SIGNS = {
    "\u2212": "-",
    "≈": " approximately ",
    "≠": " is not equal to ",
    "≤": " less than or equal to ",
    "≥": " greater than or equal to ",
    "√": " square root of ",
    "∞": " infinity ",
    "π": " pi ",
    "µ": "micro",
}
"""Signs that are read by name wherever they stand."""
_MILLIONS = {"K": "thousand", "k": "thousand", "M": "million", "B": "billion", "T": "trillion"}
_AREAS = {"km": "square kilometers", "m": "square meters", "cm": "square centimeters", "mm": "square millimeters"}
_REWRITTEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), written)
    for pattern, written in (
        (r"(?<=\d)x(?=\d)", " by "),
        (r"(?<=\d)\^(?=-?\d)", " to the power of "),
        (r"^~(?=[$£€]?\d)", "about "),
        (r"(?i)(?<=\d)([ap])m[-–](?=\d)", r" \1.m. to "),
        (r"\b([A-GJ])#(?!\w)", r"\1 sharp"),
        (r"\bCO2\b", "C O 2"),
        (r"\bIPv(?=[46]\b)", "I P version "),
        (r"^(\d+)/\1(?!\d)", r"\1 \1"),
    )
)
_ALONE = {
    "*": "times",
    "&&": "and",
    "||": "or",
    "!=": "is not equal to",
    "<=": "less than or equal to",
    ">=": "greater than or equal to",
    "=": "equals",
    "==": "equals",
    "+": "plus",
    "<": "less than",
    ">": "greater than",
    "~": "about",
    "/": "slash",
    "\\": "",
    "--": "—",
    "---": "",
    "–": "—",
    "->": "to",
    "=>": "to",
    "|": "",
    "&": "and",
    "%": "percent",
    "•": "",
    "^": "",
    "→": "to",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
}


def plain_characters(text: str) -> str:
    """Only characters that the reader knows: Latin letters, ASCII, usual typographic marks; the rest is left out."""
    out: list[str] = []
    for character in text:
        if character.isascii():
            out.append(character if character.isprintable() else " ")
        elif character in _SIGNS:
            out.append(_SIGNS[character])
        elif character in _KEEP or "À" <= character <= "ɏ":
            out.append(character)
        else:
            folded = unicodedata.normalize("NFKD", character)
            out.extend(part for part in folded if part.isascii() and part.isprintable())
    return "".join(out)


def spoken_domain(domain: str) -> str:
    """``example.com`` to ``example dot com``."""
    return domain.replace(".", " dot ").replace("-", " dash ")


def clean_word(word: str, line_start: bool) -> str:
    """One word (no white space inside) without markup; may come back as several words, or as none.

    ``line_start``: it is the first word of a line, where ``-``, ``#`` and ``1.`` are list marks.
    """
    text = plain_characters(_ENTITY.sub(lambda found: html.unescape(found.group()), word))
    if text.startswith("```") or (line_start and text in {"-", "*", "+", "•", "–", "—", ">"}):
        return ""
    if line_start and re.fullmatch(r"\d{1,3}[.)]", text):
        return text[:-1] + ","
    if text in _ALONE:
        return _ALONE[text]
    text = _LINK_TARGET.sub("", text)
    text = _TAG.sub(" ", text)
    url = _URL.search(text)
    if url:
        host = url.group(1).strip(".,;:!?\"')(")
        tail = _TRAIL.search(text)
        spoken = spoken_domain(host.removeprefix("www."))
        text = f"{text[: url.start()]} {spoken}" + (tail.group().strip('"”’)') if tail else "")
    else:
        for pattern, written in _REWRITTEN:
            text = pattern.sub(written, text)
    text = _STARS.sub(" times ", text.replace("\\", " "))
    text = text.replace("**", "").replace("`", "").replace("~~", "").replace("*", "").replace("_", " ")
    text = re.sub(r"[\[\]{}|<>~^]+", " ", text) if text.strip() not in _ALONE else text
    text = _EDGE_MARKS.sub("", text.strip()).strip()
    if text in _ALONE:
        return _ALONE[text]
    parts = [_spell(part) for part in text.split()]
    return " ".join(" ".join(parts).split())


def _spell(part: str) -> str:
    tail = _TRAIL.search(part)
    body, end = (part[: tail.start()], tail.group()) if tail else (part, "")
    email = _EMAIL.match(body)
    if email:
        return f"{spoken_domain(email.group(1))} at {spoken_domain(email.group(2))}{end}"
    domain = _DOMAIN.match(body)
    if domain:
        return spoken_domain(domain.group(1)) + end
    number = re.fullmatch(r"(\d[\d.,]*)(k|K|M|B|T)", body)
    if number:
        return f"{number.group(1)} {_MILLIONS[number.group(2)]}{end}"
    area = re.fullmatch(r"(\d[\d.,]*)(km|cm|mm|m)²", body)
    if area:
        return f"{area.group(1)} {_AREAS[area.group(2)]}{end}"
    if re.fullmatch(r"\d+(?:,\d+)+", body) and not re.fullmatch(r"\d{1,3}(?:,\d{2,3})*,\d{3}", body):
        return body.replace(",", ", ") + end
    return _LONG_DIGITS.sub(lambda found: " ".join(re.findall(r"\d", found.group())), part)
