"""What the ears are asked, and what they say."""

from __future__ import annotations

import msgspec


class HearingOptions(msgspec.Struct, frozen=True, array_like=True):
    """How a sound is to be heard.

    ``language``: ISO 639-1, None for what is set or found. ``prompt``: what was said before, or words that may come.
    ``temperature``: 0 for the likeliest text. ``translate``: into English. ``words``: with the time of each word;
    ``tokens``: with each token's log probability. ``background``: everything else goes first.
    """

    language: str | None = None
    prompt: str = ""
    temperature: float = 0.0
    translate: bool = False
    words: bool = False
    tokens: bool = False
    background: bool = False


class HeardWord(msgspec.Struct, frozen=True, array_like=True):
    """A word, with the punctuation that belongs to it, from ``start_s`` to ``end_s`` of the sound."""

    text: str
    start_s: float
    end_s: float


class HeardToken(msgspec.Struct, frozen=True, array_like=True):
    """A token of the ears, as text, and its natural log probability."""

    text: str
    log_probability: float


class Transcription(msgspec.Struct, frozen=True, array_like=True):
    """What was heard in a sound: ``text`` is empty if nobody spoke. ``language``: ISO 639-1, empty if it isn't known.

    ``log_probability``: mean over the text's tokens; ``no_speech``: probability that nobody spoke. ``words`` and
    ``tokens`` are there if they were asked for and the ears can tell.
    """

    text: str
    language: str = ""
    log_probability: float = 0.0
    no_speech: float = 0.0
    words: tuple[HeardWord, ...] = ()
    tokens: tuple[HeardToken, ...] = ()
    written: int = 0
    """Tokens of the text."""


class EarsFacts(msgspec.Struct, frozen=True, array_like=True):
    """What ears can. ``languages``: ISO 639-1, empty if that isn't known. ``name``: of their model."""

    name: str
    languages: tuple[str, ...] = ()
    translates: bool = False
    words: bool = False


PLAIN = HearingOptions()
"""Heard as in a conversation."""

ENGLISH = EarsFacts("ears", ("en",))
"""Ears of which no more is known than that they hear English."""
