"""Text in any pieces to words that can be read aloud, as soon as they are settled.

A word is settled once no phrase can take the next one too: at once for most words, after at most three more for those
that begin an amount, a date, a name with a numeral. What comes out depends on the text alone, never on its pieces.

Thoughts (``<think>``) are left out. Code blocks and tables are announced or skipped, as :class:`Options` says. A
word of the operator's pronunciations comes out as they say, before any rule is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import emoji

from voicechat.reading import numbers as n
from voicechat.reading.phrases import match, wants_more
from voicechat.reading.tables import SIGNS
from voicechat.reading.words import name_of_code, say, strip_markup

MAX_WORD = 48
"""Longer runs without white space are cut, so that no word costs more than a moment; but not addresses."""
MAX_ADDRESS = 2048
_MAX_LINE = 256
"""So many words of a line that may be a row of a table are kept back at most."""

_THINK = re.compile(r"(</?think(?:ing)?>)")
_FENCE = re.compile(r"(```+|~~~+)(.*)", re.DOTALL)
_ADDRESS = re.compile(r"(?i)(?:[a-z][a-z0-9+.-]*://|www\.|\]\()")
_BULLETS = frozenset({"-", "*", "+", "•", "–", "—", ">", "·", "◦", "▪", "‣"})
_NEWLINES = "\n\r\u2028\u2029"


@dataclass(frozen=True, slots=True)
class Options:
    """How blocks and signs that nobody speaks are read.

    ``code`` and ``tables``: a short sentence says that one is there, or nothing does. ``emoji``: by their names, or
    not. ``pronunciations``: words (lower case) to what is read for them: other words, or IPA between slashes.
    """

    code: Literal["announce", "skip"] = "announce"
    tables: Literal["announce", "skip"] = "announce"
    emoji: Literal["silent", "name"] = "silent"
    pronunciations: Mapping[str, str] = field(default_factory=dict)


class Spoken(NamedTuple):
    """Words that are read (never empty), and the position of the last written character that they come from.

    ``first``: the first character as it is written. ``breaks``: a new line or block begins with them. ``ipa``: how they
    sound, where the operator said so.
    """

    text: str
    end: int
    first: str
    breaks: bool = False
    ipa: str | None = None


class _Written(NamedTuple):
    text: str
    end: int
    breaks: bool
    line_start: bool


class Normaliser:
    """Feed it text; it gives :class:`Spoken` words back in order."""

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()
        self._position = 0
        self._word: list[str] = []
        self._new_line = True
        self._breaks = True
        self._thinking = False
        self._fence: str | None = None
        self._announcement = ""
        self._row: list[_Written] | None = None
        self._table: tuple[int, int, int] | None = None  # columns, rows, end
        self._pending: list[_Written] = []
        self._previous = ""
        self._out: list[Spoken] = []

    def feed(self, text: str) -> list[Spoken]:
        """Take more text; returns the words that are now settled."""
        for character in text:
            if character.isspace():
                self._end_word()
                if character in _NEWLINES:
                    self._end_line()
            else:
                if not self._word:
                    self._settle(following=character)
                self._word.append(character)
                if len(self._word) >= MAX_WORD and self._too_long():
                    self._position += 1
                    self._end_word()
                    continue
            self._position += 1
        return self._take()

    def finish(self) -> list[Spoken]:
        """No more text: the rest of the words."""
        self._end_word()
        self._end_line()
        self._end_table()
        self._settle(final=True)
        return self._take()

    @property
    def beginning(self) -> tuple[str, bool] | None:
        """First character of a word that has just begun, and whether a new line does too; None if there is no such word
        or what comes before it is not settled."""
        if len(self._word) != 1 or self._pending or self._row or self._fence is not None or self._thinking:
            return None
        return self._word[0], self._breaks

    def _take(self) -> list[Spoken]:
        out, self._out = self._out, []
        return out

    def _too_long(self) -> bool:
        word = "".join(self._word)
        return len(word) >= MAX_ADDRESS or _ADDRESS.search(word) is None

    # ---- words and lines

    def _end_word(self) -> None:
        if not self._word:
            return
        raw = "".join(self._word)
        self._word.clear()
        for part in _THINK.split(raw) if "<" in raw else [raw]:
            if _THINK.fullmatch(part):
                self._thinking = part[1] != "/"
                self._new_line = True
            elif part and not self._thinking:
                self._written(part, self._position - 1)

    def _written(self, text: str, end: int) -> None:
        first, self._new_line = self._new_line, False
        word = _Written(text, end, self._breaks, first)
        if first and (fence := _FENCE.fullmatch(text)) is not None:
            self._on_fence(fence, word)
        elif self._fence is not None:
            if self._announcement:
                self._say(self._announcement, end)
                self._announcement, self._breaks = "", True
        elif first and text.startswith("|") and len(text) < MAX_WORD:
            self._row = [word]
        elif self._row is not None and len(self._row) < _MAX_LINE:
            self._row.append(word)
        else:
            self._end_table()
            self._accept(word)

    def _on_fence(self, fence: re.Match[str], word: _Written) -> None:
        mark, rest = fence.groups()
        if self._fence is not None:
            if mark.startswith(self._fence) and not rest:
                self._fence = None
            return
        if rest.endswith(mark) and rest != mark:  # all in one word
            self._accept(word._replace(text=rest.removesuffix(mark)))
            return
        self._fence = mark
        self._break()
        if self._options.code == "announce":
            language = name_of_code(rest)
            self._announcement = f"Code in {language}." if language else "Code."

    def _end_line(self) -> None:
        row, self._row = self._row, None
        if row is not None:
            if len(row[-1].text) and row[-1].text.endswith("|") and (len(row) > 1 or row[0].text.count("|") > 2):
                self._on_row(row)
            else:
                self._end_table()
                for word in row:
                    self._accept(word)
        elif not self._new_line or self._table is None:
            self._end_table()
        self._new_line = True
        if self._fence is None and self._table is None:
            self._break()

    def _on_row(self, row: list[_Written]) -> None:
        text = " ".join(word.text for word in row)
        columns, rows, _ = self._table or (text.count("|") - 1, 0, 0)
        ruled = re.fullmatch(r"[|\s:-]+", text) is not None
        self._table = (columns, rows + (not ruled), row[-1].end)

    def _end_table(self) -> None:
        table, self._table = self._table, None
        if table is None:
            return
        columns, rows, end = table
        self._break()
        if self._options.tables == "announce":
            count = f"{n.cardinal(columns)} column{'' if columns == 1 else 's'}"
            more = f"{n.cardinal(rows)} row{'' if rows == 1 else 's'}"
            self._say(f"A table of {count} and {more}.", end)
        self._breaks = True

    def _break(self) -> None:
        self._settle(final=True)
        self._breaks = True
        self._previous = ""

    # ---- from written to spoken

    def _accept(self, word: _Written) -> None:
        text = word.text
        if word.line_start:
            if text in _BULLETS or re.fullmatch(r"#{1,6}|[-*_=]{3,}", text):
                self._new_line = text in _BULLETS
                return
            if re.fullmatch(r"\d{1,3}[.)]", text):
                self._say(f"{n.cardinal(int(text[:-1]))},", word.end)
                return
            if text in {"[", "]", "[]", "[x]", "[X]"}:
                return
        if ipa := self._pronounced(text):  # the operator has the last word
            self._settle(final=True)
            self._say(ipa[0], word.end, first=text[0], ipa=ipa[1])
            self._previous = text
            return
        if not text.isascii():
            text = emoji.replace_emoji(text, self._emoji)
        for part in strip_markup(text).split():
            self._pending.append(word._replace(text=part))
            self._settle()

    def _emoji(self, sign: str, _: object) -> str:
        if sign[0] in SIGNS:
            return sign
        if self._options.emoji == "silent":
            return ""
        return f" {emoji.demojize(sign, delimiters=('', '')).replace('_', ' ')} "

    def _pronounced(self, text: str) -> tuple[str, str | None] | None:
        if not self._options.pronunciations:
            return None
        found = re.fullmatch(r"(\W*)(.*?)((?:['’]s)?\W*)", text, re.DOTALL)
        assert found is not None
        lead, core, tail = found.groups()
        how = self._options.pronunciations.get(core.lower())
        if how is None:
            return None
        if len(how) > 2 and how[0] == how[-1] == "/":
            return f"{lead}{core}{tail}", how[1:-1]
        return f"{lead}{how}{tail}", None

    def _settle(self, *, following: str = "", final: bool = False) -> None:
        """Read what no further word can change."""
        while self._pending:
            words = [word.text for word in self._pending]
            if not final and wants_more(words, following):
                return
            phrase = match(words)
            count, text = (phrase.words, phrase.text) if phrase else (1, say(words[0], self._previous))
            first = text.partition(" ")[0]
            if phrase and first in {"the", "version"} and self._previous.lower() == first:
                text = text.removeprefix(f"{first} ")
            taken, self._pending = self._pending[:count], self._pending[count:]
            self._previous = taken[-1].text
            if text:
                self._say(text, taken[-1].end, first=taken[0].text[0])

    def _say(self, text: str, end: int, *, first: str = "", ipa: str | None = None) -> None:
        if text.strip():
            self._out.append(Spoken(" ".join(text.split()), end, first or text[0], self._breaks, ipa))
            self._breaks = False


def spoken(text: str, options: Options | None = None) -> str:
    """All of a text as it is read, lines joined by spaces."""
    normaliser = Normaliser(options)
    return " ".join(word.text for word in [*normaliser.feed(text), *normaliser.finish()])
