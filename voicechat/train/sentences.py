"""Sentences made by rule: numbers, dates, names, questions, lists, short answers, abbreviations, made-up words.

Their words and forms are in ``sentences.yaml``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import yaml

_WORDS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TOPICS = _WORDS["topics"]


def _pick(rng: random.Random, kind: str) -> str:
    return rng.choice(_WORDS[kind])


def made_word(rng: random.Random) -> str:
    """A word that no lexicon holds."""
    syllables = [_pick(rng, "consonants") + _pick(rng, "vowels") for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    return "".join(syllables) + _pick(rng, "endings")


def number(rng: random.Random) -> str:
    """A number as people and models write it."""
    kind = rng.randrange(8)
    if kind == 0:
        return str(rng.randrange(0, 13))
    if kind == 1:
        return str(rng.randrange(13, 100))
    if kind == 2:
        return f"{rng.randrange(100, 1000)}"
    if kind == 3:
        return f"{rng.randrange(1000, 1_000_000):,}"
    if kind == 4:
        return f"{rng.randrange(0, 100)}.{rng.randrange(1, 100)}"
    if kind == 5:
        return f"{rng.randrange(1, 50)} {rng.choice(('hundred', 'thousand', 'million', 'billion'))}"
    if kind == 6:
        return f"{rng.randrange(1, 32)}{'th' if rng.random() < 0.5 else ''}".replace("1th", "1st").replace("2th", "2nd")
    return str(rng.randrange(1500, 2031))


def name(rng: random.Random) -> str:
    """A person's name, sometimes with a title or initials."""
    first, last = _pick(rng, "first_names"), _pick(rng, "last_names")
    kind = rng.randrange(5)
    if kind == 0:
        return f"{rng.choice(('Dr.', 'Mr.', 'Mrs.', 'Ms.', 'Prof.'))} {last}"
    if kind == 1:
        return f"{first[0]}. {last}"
    return first if kind == 2 else f"{first} {last}"


def date(rng: random.Random) -> str:
    """A date or a time of day."""
    month, day, year = _pick(rng, "months"), rng.randrange(1, 29), rng.randrange(1700, 2031)
    kind = rng.randrange(6)
    if kind == 0:
        return f"{month} {day}, {year}"
    if kind == 1:
        return f"the {day}th of {month}" if day > 3 else f"the first of {month}"
    if kind == 2:
        clock = f"{rng.randrange(1, 13)}:{rng.randrange(0, 60):02d} {rng.choice(('am', 'pm', 'p.m.'))}"
        return f"{_pick(rng, 'days')} at {clock}"
    if kind == 3:
        return f"{year}"
    if kind == 4:
        return f"{_pick(rng, 'days')}, {month} {day}"
    return f"{rng.randrange(1, 13)} o'clock"


def made_sentence(rng: random.Random) -> str:
    """One sentence by a random rule."""
    return rng.choice(_RULES)(rng)


def _count(rng: random.Random) -> str:
    place = rng.choice(("box", "room", "shop"))
    return f"{_pick(rng, 'openers')}there are {number(rng)} {_pick(rng, 'things')} in the {place}."


def _price(rng: random.Random) -> str:
    price = f"{rng.choice('$£€')}{rng.randrange(1, 2000)}{rng.choice(('', '.50', '.99', ' million'))}"
    change = f"{rng.randrange(1, 100)}% {rng.choice(('more', 'less'))}"
    return f"The {_pick(rng, 'things')} cost {price}, which is {change} than before."


def _dated(rng: random.Random) -> str:
    verb = rng.choice(("was born on", "moved to the city on", "called me on", "will arrive on", "finished the work by"))
    return f"{name(rng)} {verb} {date(rng)}."


def _parts(rng: random.Random) -> dict[str, str]:
    return {
        "n": name(rng), "x": number(rng), "y": number(rng), "t": _pick(rng, "things"), "p": _pick(rng, "places"),
        "q": _pick(rng, "places"), "u": _pick(rng, "units"), "w": made_word(rng), "d": date(rng),
        "o": _pick(rng, "openers"), "s": _pick(rng, "topics"),
    }  # fmt: skip


def _list(rng: random.Random) -> str:
    items = rng.sample(_WORDS["things"], rng.randrange(3, 6))
    if rng.random() < 0.3:
        return "You will need:\n" + "\n".join(f"{rng.choice(('-', '*', '1.'))} {item}" for item in items) + "\n"
    return f"{_pick(rng, 'openers')}you will need {', '.join(items[:-1])}, and {items[-1]}."


def _short(rng: random.Random) -> str:
    return _pick(rng, "short")


def _filled(kind: str) -> Callable[[random.Random], str]:
    """The rule that fills in one of the forms of a kind."""
    return lambda rng: _pick(rng, kind).format(**_parts(rng))


def _named_thing(rng: random.Random) -> str:
    return _filled("named_things")(rng).replace("  ", " ")


_question = _filled("questions")
_RULES = (
    _count, _price, _dated, _question, _list, _short, _filled("answers"), _filled("abbreviated"), _named_thing,
    _question, _named_thing,
)  # fmt: skip


def made_prompt(rng: random.Random, nouns: list[str]) -> str:
    """A question that someone might ask a voice assistant; ``nouns`` widen its range of topics."""
    parts = _parts(rng) | {
        "k": rng.choice(nouns), "j": rng.choice(nouns), "m": _pick(rng, "months"),
        "l": f"{_pick(rng, 'first_names')} {_pick(rng, 'last_names')}",
    }  # fmt: skip
    return _pick(rng, "prompts").format(**parts)
