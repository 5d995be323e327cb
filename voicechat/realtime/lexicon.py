"""What words say about a turn, as data per language: is it complete, or only a backchannel? Pure.

The ASR punctuates: a sentence that ends in a full stop is complete; one that trails off, or breaks off after a word
that needs another, is not. Which words these are is told by the files in ``lexicons/``, one for each language, read
once at first use. For a language without a file only the punctuation counts.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

_ENDS = ".!?。！？"
_TRAILING = ("...", "…", "-", "—", ",", "、", ":", ";")
_CLOSING = "\"'”’)]»"
_BEFORE = _CLOSING + "¿¡("
_MOST_BACKCHANNELS = 4
"""Who says more different words than this has something to say."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """One language's words, in lower case. All of them may be empty.

    ``open_words``: something must follow them, also in a question; ``open_statement_words``: something follows them in
    a statement, but a question may end with them ("what is that for?"); ``open_phrases``: as the former, of several
    words; ``open_suffixes``: ends of words after which a clause goes on. ``opening_words`` open a subordinate clause if
    one of ``subjects`` follows ("when I go to the beach"): what it leads to comes after a comma. ``openers`` are
    incomplete alone or after a comma ("well"). A statement that ends in ``open_digits`` digits or more is a number
    being dictated; 0: none is.

    ``backchannels`` are what listeners say; after those of them that are ``hums`` nothing else is said.
    ``backchannel_phrases`` are the same of several words, and so is each of ``backchannel_heads`` before one of
    ``backchannel_tails`` ("that's right"). With one of ``barge_ins`` a speaker takes the floor, however little is said.
    """

    open_words: frozenset[str] = frozenset()
    open_statement_words: frozenset[str] = frozenset()
    open_phrases: tuple[tuple[str, ...], ...] = ()
    open_suffixes: tuple[str, ...] = ()
    opening_words: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()
    openers: frozenset[str] = frozenset()
    open_digits: int = 0
    backchannels: frozenset[str] = frozenset()
    hums: frozenset[str] = frozenset()
    backchannel_phrases: tuple[tuple[str, ...], ...] = ()
    backchannel_heads: tuple[tuple[str, ...], ...] = ()
    backchannel_tails: frozenset[str] = frozenset()
    barge_ins: frozenset[str] = frozenset()

    def is_complete(self, text: str) -> bool:
        """True if nothing seems to be missing after ``text``."""
        text = text.strip().rstrip(_CLOSING).rstrip()
        if not text or text.endswith(_TRAILING) or text[-1] not in _ENDS:
            return False
        statement = text[-1] in ".。"
        words = [word.strip(_BEFORE) for word in text.rstrip(_ENDS).lower().split()]
        plain = _words(text)
        if not words or words[-1] in self.open_words or _ends_with(plain, self.open_phrases):
            return False
        if statement and (words[-1] in self.open_statement_words or words[-1].endswith(self.open_suffixes)):
            return False
        if statement and self.open_digits and re.search(rf"\d{{{self.open_digits},}}$", words[-1]):
            return False
        if words[-1] in self.openers and (len(words) == 1 or words[-2].endswith(",")):
            return False
        return not self._is_opening_clause(words)

    def is_backchannel(self, text: str) -> bool:
        """True if ``text`` only says that its speaker is listening ("mm-hm", "yeah, okay"), or nothing at all.

        A word counts once, however often it is said: the ASR hears a drawn "yeah, yeah" as a whole row of them.
        """
        left = self._said(text)
        return len(left) <= _MOST_BACKCHANNELS and left <= self.backchannels

    def takes_floor(self, text: str) -> bool:
        """True if ``text`` has a word with which speakers take the floor."""
        return bool(self._said(text) & self.barge_ins)

    def other_words(self, text: str) -> int:
        """How many different words of ``text`` no listener says; "that's" is one."""
        left = self._said(text) - self.backchannels
        return len({word for word in text.lower().split() if left.intersection(_words(word))})

    def _said(self, text: str) -> set[str]:
        """The words of ``text`` but for listeners' phrases."""
        words, left, at = _words(text), set[str](), 0
        while at < len(words):
            if skip := self._phrase_at(words, at):
                at += skip
                continue
            left.add(words[at])
            at += 1
        return left

    def may_go_on(self, text: str) -> bool:
        """True if a listener who said ``text`` may be about to say more: "okay, but"; nobody goes on after "mm-hm"."""
        return any(word not in self.hums for word in _words(text))

    def _phrase_at(self, words: list[str], at: int) -> int:
        """How many words from ``at`` on are a listener's phrase, but for its tail, which is a backchannel itself."""
        for phrase in self.backchannel_phrases:
            if tuple(words[at : at + len(phrase)]) == phrase:
                return len(phrase)
        for head in self.backchannel_heads:
            end = at + len(head)
            if tuple(words[at:end]) == head and words[end : end + 1] and words[end] in self.backchannel_tails:
                return len(head)
        return 0

    def _is_opening_clause(self, words: list[str]) -> bool:
        """True for "when I go to the beach": what it leads to is missing. The ASR puts a comma between the two."""
        opens = len(words) > 2 and words[0] in self.opening_words
        opens = opens and re.split(r"['’]", words[1])[0] in self.subjects
        return opens and not any(word.endswith(",") for word in words)


def parse(data: Mapping[str, Any]) -> Lexicon:
    """A lexicon of the fields of a file: words as one text or a list, phrases as a list. Raises ValueError for a wrong
    or unknown field."""
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Lexicon)}
    found: dict[str, Any] = {}
    for name, value in data.items():
        kind = kinds.get(name)
        if kind is None:
            raise ValueError(f"a lexicon has no field {name!r}")
        if kind == "int":
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a number from 0 on, not {value!r}")
            found[name] = value
            continue
        items = value.split() if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            raise ValueError(f"{name} must be words, not {value!r}; YAML takes some for true or false: quote them")
        items = [item.lower() for item in items]
        if kind == "frozenset[str]":
            found[name] = frozenset(items)
        else:
            found[name] = tuple(items) if kind == "tuple[str, ...]" else tuple(tuple(item.split()) for item in items)
    return Lexicon(**found)


@functools.cache
def lexicon(language: str) -> Lexicon:
    """Of a language by its tag (``en``, ``en-US``); one without words if there is no file for it."""
    name = language.replace("_", "-").split("-")[0].lower()
    if name not in languages():
        return Lexicon()
    return parse(yaml.safe_load(_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8")))


@functools.cache
def languages() -> tuple[str, ...]:
    """Those that there are words for."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml")))


def _folder() -> resources.abc.Traversable:
    return resources.files("voicechat.realtime").joinpath("lexicons")


def _ends_with(words: list[str], phrases: tuple[tuple[str, ...], ...]) -> bool:
    return any(tuple(words[-len(phrase) :]) == phrase for phrase in phrases)


def _words(text: str) -> list[str]:
    return "".join(char if char.isalpha() or char.isspace() else " " for char in text.lower()).split()
