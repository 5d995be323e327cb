"""Streaming text to symbol rows: what the Talker reads.

The text of a reply arrives in pieces (a Thinker's tokens). Words are read by hibari's grapheme-to-phoneme rules as
soon as their reading is settled: when the next word has begun, or, for the few words whose sound depends on what
follows ("the", "to", "read", ...), when it is complete. Rows depend on the text alone, never on how it was cut into
pieces or on when these came, and rows once returned never change.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from hibari.g2p import G2P
from hibari.g2p.normalize import MONTHS, ROMAN_CARDINAL, ROMAN_ORDINAL, TITLES, normalize

from voicechat.models.embedded.cleaning import MAX_WORD, clean_word

logger = logging.getLogger(__name__)

PAUSE = 0
"""Symbol of a sentence's start and of the end of the text."""
SPACE = 16
"""Symbol between words."""

_PUNCTUATION = range(1, 16)
_CLOSING = range(1, 11)
_LEFT_WORDS = 3
_MAX_GROUP = 8
_SOFT_LIMIT = 260
_HARD_LIMIT = 360
_CONTEXT_WORDS = frozenset({"the", "to", "in", "am", "a", "an", "by", "used", "that"})
_SENTENCE_END = re.compile(r"[.!?…][\"”’')\]*_]*$")
_CLAUSE_END = re.compile(r"[,;:—][\"”’')\]]*$")
_EDGES = "\"“”‘’'()[]{}*_`.,;:!?…"
_MONTHS = frozenset(MONTHS) | {name.lower() for name in MONTHS.values()} | {"sept"}
_NUMBERED = frozenset(phrase.split()[-1] for phrase in (*ROMAN_CARDINAL, *ROMAN_ORDINAL)) | {"No", "Nos", "World", "Rs"}
_CURRENCY = re.compile(r"[$£€¥₹₩¢]")
_READER_ERRORS = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, StopIteration)


class Row(NamedTuple):
    """One symbol of the text and the index of the Thinker token that completed its word."""

    symbol: int
    token: int


class Mark(NamedTuple):
    """One symbol of the text and the position of the last character that its word needs."""

    symbol: int
    end: int


@dataclass(frozen=True, slots=True)
class _Word:
    raw: str
    text: str
    end: int


@lru_cache(maxsize=1)
def load_g2p() -> G2P:
    """Lexicon and rules, read once per process (about a second)."""
    reader = G2P()
    reader.tokenizer(" ")
    reader._oov = lru_cache(maxsize=1 << 14)(reader.oov)  # a net's run for each word that the lexicon does not have
    return reader


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    text = (files("hibari") / "assets" / "vocab.json").read_text(encoding="utf-8")
    return {str(symbol): int(number) for symbol, number in json.loads(text).items()}


class Reader:
    """Characters in, :class:`Mark` s out. :class:`TextFrontend` is the form with token indices."""

    def __init__(self) -> None:
        self._g2p = load_g2p()
        self._alphabet = _alphabet()
        self._position = 0
        self._word: list[str] = []
        self._break = True
        self._line_start = True
        self._pending: list[_Word] = []
        self._left: list[str] = []
        self._symbols = 0
        self._last_end = 0
        self._spoke = False
        self._out: list[Mark] = []

    def feed(self, text: str) -> list[Mark]:
        """Take more text; returns the marks that are now settled."""
        for character in text:
            if character.isspace():
                self._end_word()
                if character in "\n\r\u2028\u2029":
                    self._break = True
            else:
                if not self._word:
                    self._start_word(character)
                self._word.append(character)
                if len(self._word) >= MAX_WORD:
                    self._position += 1
                    self._end_word()
                    continue
            self._position += 1
        return self._take()

    def finish(self) -> list[Mark]:
        """No more text: the rest of the marks, then the final pause. Empty if nothing was to be read at all."""
        self._end_word()
        self._commit(None, sentence_end=True)
        if self._spoke:
            self._out.append(Mark(PAUSE, max(self._position - 1, 0)))
        return self._take()

    def _take(self) -> list[Mark]:
        out, self._out = self._out, []
        return out

    def _start_word(self, first: str) -> None:
        if self._break:
            self._commit(None, sentence_end=True)
            self._break = False
            self._line_start = True
        if not self._pending:
            return
        last = self._pending[-1]
        if _ends_sentence(last.raw, first):
            self._commit(None, sentence_end=True)
        elif not self._sticky(first) and not self._needs_next(last):
            self._commit(None)

    def _end_word(self) -> None:
        if not self._word:
            return
        raw = "".join(self._word)
        self._word.clear()
        word = _Word(raw, clean_word(raw, self._line_start), self._position - 1)
        self._line_start = False
        if not word.text:
            return
        if self._pending and not self._sticky(raw[0]):
            self._commit(word)
        self._pending.append(word)

    def _sticky(self, first: str) -> bool:
        """Whether the next word, beginning with ``first``, has to be read together with the pending ones."""
        if len(self._pending) >= _MAX_GROUP:
            return False
        last = self._pending[-1].text
        core = last.strip(_EDGES)
        if last.endswith(","):
            months = (word.text.strip(_EDGES).lower() in _MONTHS for word in self._pending)
            return first.isdigit() and core.isdigit() and any(months)
        if last[-1] in ";:!?…":
            return False
        if any(character.isdigit() for character in core) or _CURRENCY.search(last):
            return True
        if core.lower() in {"the", "of"}:
            return first.isdigit() or len(self._pending) > 1
        return core in TITLES or core.lower() in _MONTHS or core in _NUMBERED or last in {"-", "–"}

    def _needs_next(self, word: _Word) -> bool:
        if word.text[-1] in ",;:!?…":
            return False
        core = word.text.rsplit(" ", 1)[-1].strip(_EDGES).lower()
        golds = self._g2p.lexicon.golds
        return core in _CONTEXT_WORDS or any(
            isinstance(golds.get(form), dict) for form in (core, core.removesuffix("s"))
        )

    def _commit(self, following: _Word | None, sentence_end: bool = False) -> None:
        if self._pending:
            words, self._pending = self._pending, []
            end = words[-1].end
            for phonemes in self._read(words, following):
                self._emit(phonemes, end)
            limit = _SOFT_LIMIT if _CLAUSE_END.search(words[-1].raw) else _HARD_LIMIT
            sentence_end = sentence_end or self._symbols >= limit
        if sentence_end:
            self._left.clear()
            self._symbols = 0

    def _read(self, words: list[_Word], following: _Word | None) -> list[str]:
        """Phonemes of each spoken word of a group, given the words around it."""
        joined = " ".join(word.text for word in words)
        try:
            text = normalize(joined)
            chunks = text.split()
            after = normalize(following.text).split()[:1] if following else []
            line = " ".join((*self._left, *chunks, *after))
            tokens = self._g2p.phonemize_tokens(self._g2p.tokenize(line))
        except _READER_ERRORS as error:
            logger.warning("cannot read %r aloud: %r", joined, error)
            return []
        read = [""]
        for token in tokens:
            read[-1] += token.phonemes or ""
            if token.whitespace:
                read.append("")
        start = len(self._left)
        self._left = [*self._left, *chunks][-_LEFT_WORDS:]
        return read[start : start + len(chunks)]

    def _emit(self, phonemes: str, end: int) -> None:
        symbols = [self._alphabet[symbol] for symbol in phonemes if symbol in self._alphabet]
        while symbols and symbols[0] == SPACE:
            symbols.pop(0)
        sounds = any(symbol not in _PUNCTUATION for symbol in symbols)
        if not symbols or (self._symbols == 0 and not sounds):
            return
        if self._symbols == 0:
            symbols.insert(0, PAUSE)
            self._spoke = True
        elif symbols[0] not in _CLOSING or sounds:
            symbols.insert(0, SPACE)
        self._symbols += len(symbols)
        self._out.extend(Mark(symbol, end) for symbol in symbols)


class TextFrontend:
    """A Thinker's pieces of text, token by token, to rows."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._ends: list[int] = []

    def push(self, piece: str) -> list[Row]:
        """Take the text of the next token (may be empty); returns the rows that are now settled."""
        self._ends.append((self._ends[-1] if self._ends else 0) + len(piece))
        return self._rows(self._reader.feed(piece))

    def finish(self) -> list[Row]:
        """The text is over: the remaining rows, the last of them a pause. Empty if there was nothing to say."""
        return self._rows(self._reader.finish())

    def _rows(self, marks: list[Mark]) -> list[Row]:
        return [Row(mark.symbol, token_at(self._ends, mark.end)) for mark in marks]


def token_at(ends: list[int], position: int) -> int:
    """Index of the token that holds a character; ``ends`` are the tokens' end positions in the text."""
    return min(bisect_right(ends, position), max(len(ends) - 1, 0))


def read_text(text: str) -> list[Mark]:
    """All marks of a whole text."""
    reader = Reader()
    return reader.feed(text) + reader.finish()


def _ends_sentence(word: str, following: str) -> bool:
    """Whether a sentence ends after ``word`` when the next word begins with ``following``."""
    if following.islower() or not _SENTENCE_END.search(word):
        return False
    core = word.strip(_EDGES)
    if not word.rstrip("\"”’')]*_").endswith("."):
        return True
    if following.isdigit() and core in {"No", "Nos", "approx", "ca", "Vol", "vol", "Fig", "fig", "p", "pp"}:
        return False
    if core.lower() in _MONTHS - {"may", "march"} and following.isdigit() and len(core) <= 4:
        return False
    return not (core in TITLES or (len(core) == 1 and core.isupper()) or core.lower() in {"e.g", "i.e", "vs"})
