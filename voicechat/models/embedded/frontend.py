"""Streaming text to symbol rows: what the Talker reads.

The text of a reply arrives in pieces (a Thinker's tokens). :mod:`voicechat.reading` makes words of it that can be read
aloud; these are read by hibari's grapheme-to-phoneme rules as soon as their reading is settled: when the next word has
begun, or, for the few words whose sound depends on what follows ("the", "to", "read", ...), when it is complete. Rows
depend on the text alone, never on how it was cut into pieces or on when these came; rows once returned never change.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from hibari.g2p import G2P

from voicechat.reading.normaliser import Normaliser, Options, Spoken
from voicechat.reading.tables import TITLES

logger = logging.getLogger(__name__)

PAUSE = 0
"""Symbol of a sentence's start and of the end of the text."""
SPACE = 16
"""Symbol between words."""

_PUNCTUATION = range(1, 16)
_CLOSING = range(1, 11)
_LEFT_WORDS = 3
_SOFT_LIMIT = 260
_HARD_LIMIT = 360
_CONTEXT_WORDS = frozenset({"the", "to", "in", "am", "a", "an", "by", "used", "that"})
_SENTENCE_END = re.compile(r"[.!?…][\"”’')\]*_]*$")
_CLAUSE_END = re.compile(r"[,;:—][\"”’')\]]*$")
_EDGES = "\"“”‘’'()[]{}*_`.,;:!?…"
_READER_ERRORS = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, StopIteration)


class Row(NamedTuple):
    """One symbol of the text and the index of the Thinker token that completed its word."""

    symbol: int
    token: int


class Mark(NamedTuple):
    """One symbol of the text and the position of the last character that its word needs."""

    symbol: int
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

    def __init__(self, options: Options | None = None) -> None:
        self._g2p = load_g2p()
        self._alphabet = _alphabet()
        self._normaliser = Normaliser(options)
        self._position = 0
        self._pending: Spoken | None = None
        self._left: list[str] = []
        self._symbols = 0
        self._spoke = False
        self._out: list[Mark] = []

    def feed(self, text: str) -> list[Mark]:
        """Take more text; returns the marks that are now settled."""
        for character in text:
            for words in self._normaliser.feed(character):
                self._add(words)
            beginning = self._normaliser.beginning
            if beginning is not None:
                self._on_next(*beginning)
            self._position += 1
        return self._take()

    def finish(self) -> list[Mark]:
        """No more text: the rest of the marks, then the final pause. Empty if nothing was to be read at all."""
        for words in self._normaliser.finish():
            self._add(words)
        self._commit(None, sentence_end=True)
        if self._spoke:
            self._out.append(Mark(PAUSE, max(self._position - 1, 0)))
        return self._take()

    def _take(self) -> list[Mark]:
        out, self._out = self._out, []
        return out

    def _on_next(self, first: str, breaks: bool) -> None:
        """The next words begin with ``first``: what is pending can be read, unless it takes all of the next word."""
        if breaks:
            self._commit(None, sentence_end=True)
        elif self._pending is not None:
            if _ends_sentence(self._pending.text, first):
                self._commit(None, sentence_end=True)
            elif not self._needs_next(self._pending.text):
                self._commit(None)

    def _add(self, words: Spoken) -> None:
        self._on_next(words.first, words.breaks)
        if self._pending is not None:
            self._commit(words)
        self._pending = words

    def _needs_next(self, text: str) -> bool:
        if text[-1] in ",;:!?…":
            return False
        core = text.rsplit(" ", 1)[-1].strip(_EDGES).lower()
        golds = self._g2p.lexicon.golds
        return core in _CONTEXT_WORDS or any(
            isinstance(golds.get(form), dict) for form in (core, core.removesuffix("s"))
        )

    def _commit(self, following: Spoken | None, sentence_end: bool = False) -> None:
        if self._pending is not None:
            words, self._pending = self._pending, None
            for phonemes in self._read(words, following):
                self._emit(phonemes, words.end)
            limit = _SOFT_LIMIT if _CLAUSE_END.search(words.text) else _HARD_LIMIT
            sentence_end = sentence_end or self._symbols >= limit
        if sentence_end:
            self._left.clear()
            self._symbols = 0

    def _read(self, words: Spoken, following: Spoken | None) -> list[str]:
        """Phonemes of each spoken word, given the words around it."""
        chunks = _for_lexicon(words.text)
        if words.ipa is not None:
            lead, _, tail = _AROUND.fullmatch(words.text).groups()  # type: ignore[union-attr]
            self._left = [*self._left, *chunks][-_LEFT_WORDS:]
            return [f"{lead}{from_ipa(words.ipa)}{tail}"]
        after = _for_lexicon(following.text)[:1] if following else []
        line = " ".join((*self._left, *chunks, *after))
        try:
            tokens = self._g2p.phonemize_tokens(self._g2p.tokenize(line))
        except _READER_ERRORS as error:
            logger.warning("cannot read %r aloud: %r", words.text, error)
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


_AROUND = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)
_IPA = (
    ("eɪ", "A"), ("aɪ", "I"), ("oʊ", "O"), ("əʊ", "O"), ("aʊ", "W"), ("ɔɪ", "Y"), ("dʒ", "ʤ"), ("d͡ʒ", "ʤ"), ("tʃ", "ʧ"),
    ("t͡ʃ", "ʧ"), ("ɚ", "əɹ"), ("ɝ", "ɜɹ"), ("g", "ɡ"), ("r", "ɹ"), ("e", "A"), ("a", "æ"), ("ː", ""), (".", ""),
)  # fmt: skip


_VOWELS = "æɐɑɒəɛɜɪɔʊʌiuAIOWYᵻᵊ"


def from_ipa(ipa: str) -> str:
    """IPA as dictionaries write it to the phonemes of the lexicon.

    These have single letters for diphthongs, and the mark of stress before the vowel, not before its syllable.
    """
    for written, symbol in _IPA:
        ipa = ipa.replace(written, symbol)
    return re.sub(rf"([ˈˌ])([^{_VOWELS}\s]+)", r"\2\1", ipa)


def _for_lexicon(text: str) -> list[str]:
    return text.replace("’", "'").replace("‒", "-").replace("―", "—").split()


class TextFrontend:
    """A Thinker's pieces of text, token by token, to rows."""

    def __init__(self, options: Options | None = None) -> None:
        self._reader = Reader(options)
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


def _ends_sentence(text: str, following: str) -> bool:
    """Whether a sentence ends after ``text`` when the next word is written with ``following`` at its beginning."""
    if following.islower() or not _SENTENCE_END.search(text):
        return False
    word = text.rsplit(" ", 1)[-1]
    core = word.strip(_EDGES)
    if not word.rstrip("\"”’')]*_").endswith("."):
        return True
    return not (core in TITLES or (len(core) == 1 and core.isupper() and " " not in text))
