"""What the words of the user say about the turn: is it finished, or was it none at all? Pure.

The ears punctuate: a sentence that ends in a full stop is over, one that trails off, or breaks off after a word that
needs another, is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDS = ".!?。！？"
_TRAILING = ("...", "…", "-", "—", ",", ":", ";")
_CLOSING = "\"'”’)]»"
_OPEN_WORDS = frozenset(
    "a an the and or but so because if while which whose with my your its our their i we they he she um uh er erm hmm "
    "mm mhm wondering".split()
)
"""After these something must follow, also if the ears heard a question."""

_OPEN_STATEMENTS = frozenset(
    "when that who without of to for from in on at by as than then his her is are was were am be like".split()
)
"""After these, a statement goes on; a question may end with them ("what is that for?")."""

_OPEN_PAIRS = frozenset({("to", "know"), ("to", "ask"), ("to", "say"), ("tell", "me"), ("like", "to"), ("want", "to")})
_OPENING = frozenset("if when before after because although though unless until since while".split())
_SUBJECTS = frozenset("i you he she it we they there this that the a an my your his her its our their people".split())
_LONG_NUMBER = re.compile(r"\d{3,}\.?$")


_LISTENING = frozenset(
    "mm mmm hm hmm mhm mmhm mmhmm uh huh uhhuh um ah aha oh ooh wow yeah yep yup yes ok okay right sure cool nice i "
    "see true great good exactly absolutely indeed really interesting amazing wonderful".split()
)

_LISTENING_PHRASES = re.compile(
    r"\b(?:that s|that is|thats|it s|it is) (?=(?:right|true|cool|nice|great|good|interesting|amazing)\b)"
    r"|\b(?:got it|of course)\b"
)
"""What else they say: "that's right". Taken out, but for the word that is one by itself."""

_HUMS = frozenset("mm mmm hm hmm mhm mmhm mmhmm uh huh uhhuh um ah aha ooh wow".split())
"""Those of them after which nothing else is said."""

AFTERTHOUGHT_MS = 480
"""Silence after a word of a listener by which it is known that no "but" follows. Some speakers take 400 ms for it."""

JUDGE_MS = 400
"""So much voice in a reply is heard for what it means, and again after as much as :data:`JUDGE_ON_MS` more."""

JUDGE_ON_MS = 300
INTERRUPTION_MS = 1000
"""So much voice is an interruption of a reply, whatever the words."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Milliseconds of silence that end a turn.

    By both, sound and words: ``sure_ms`` if they agree that the turn is complete, ``words_ms`` or ``sound_ms`` if only
    the one says so. Where nobody judges the sound: ``finished_ms`` and ``unfinished_ms``, by the words. Whatever they
    say: ``limit_ms``. The sound is first judged after ``judge_ms``: while the ears still hear the words, before the
    reply needs the processor.
    """

    judge_ms: int
    sure_ms: int
    words_ms: int
    sound_ms: int
    finished_ms: int
    unfinished_ms: int
    limit_ms: int

    def by_both(self, probability: float, finished: bool) -> int:
        """``probability``: that the turn is complete by its sound; ``finished``: by its words."""
        most, least = (self.words_ms, self.sure_ms) if finished else (self.limit_ms, self.sound_ms)
        doubt = min(1.0, max(0.0, (SURE - probability) / (SURE - UNSURE)))
        return round(least + (most - least) * doubt**1.5)


SURE, UNSURE = 0.75, 0.05
"""Probabilities from which, and up to which, the sound says all that it can say."""

PATIENCE = {
    "low": Patience(300, 700, 1700, 2400, 700, 2500, 8000),
    "medium": Patience(100, 500, 760, 1000, 420, 1300, 4000),
    "auto": Patience(100, 500, 760, 1000, 420, 1300, 4000),
    "high": Patience(100, 240, 500, 600, 240, 700, 2000),
}
"""By the ``eagerness`` of the protocol, whose limits are OpenAI's.

Those of ``auto`` were chosen on the scripted set of ``voicechat bench realtime``, as a balance of cut-offs and time.
A reply is begun at the pause, and its first sound may be there sooner than ``sure_ms``: people pause so long between
two sentences.
"""


def is_listening(text: str) -> bool:
    """True if ``text`` only says that its speaker is listening ("mm-hm", "yeah, okay"), or nothing at all.

    A word counts once, however often it is said: the ears hear a drawn "yeah, yeah" as a whole row of them.
    """
    words = _LISTENING_PHRASES.sub(" ", " ".join(_words(text))).split()
    return len(set(words)) <= 4 and all(word in _LISTENING for word in words)


def may_go_on(text: str) -> bool:
    """True if a listener who said ``text`` may be about to say more: "okay, but"; nobody goes on after "mm-hm"."""
    return any(word not in _HUMS for word in _words(text))


def sounds_finished(text: str) -> bool:
    """True if nothing seems to be missing after ``text``."""
    text = text.strip().rstrip(_CLOSING).rstrip()
    if not text or text.endswith(_TRAILING) or text[-1] not in _ENDS:
        return False
    statement = text[-1] == "."
    words = [word.strip(_CLOSING + "¿¡(") for word in text.rstrip(_ENDS).lower().split()]
    if not words or words[-1] in _OPEN_WORDS or tuple(words[-2:]) in _OPEN_PAIRS:
        return False
    if statement and (words[-1] in _OPEN_STATEMENTS or _LONG_NUMBER.search(text)):
        return False
    if words[-1] == "well" and (len(words) == 1 or words[-2].endswith(",")):  # but "they do it very well."
        return False
    return not _is_opening_clause(words)


def _words(text: str) -> list[str]:
    return "".join(char if char.isalpha() or char.isspace() else " " for char in text.lower()).split()


def _is_opening_clause(words: list[str]) -> bool:
    """True for "when I go to the beach": what it leads to is missing. The ears put a comma between the two."""
    opens = len(words) > 2 and words[0] in _OPENING and words[1].split("'")[0] in _SUBJECTS
    return opens and not any(word.endswith(",") for word in words)
