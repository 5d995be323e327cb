"""What the words of the user say about the turn: is it finished, or was it none at all? Pure.

The ears punctuate: a sentence that ends in a full stop is over, one that trails off, or breaks off after a word that
needs another, is not.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENDS = ".!?。！？"
_TRAILING = ("...", "…", "-", "—", ",", ":", ";")
_CLOSING = "\"'”’)]»"
_OPEN_WORDS = frozenset(
    "a an the and or but so because if when while that which who whose with without of to for from in on at by as than "
    "then my your his her its our their is are was were am be i we they he she um uh er erm hmm mm like well".split()
)


_LISTENING = frozenset(
    "mm mmm hm hmm mhm mmhm mmhmm uh huh uhhuh um ah aha oh ooh wow yeah yep yup yes ok okay right sure cool nice i "
    "see".split()
)

JUDGE_MS = 360
"""So much voice after the onset of a turn is an interruption of a reply, whatever the words."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Milliseconds of silence that end a turn.

    By the words alone: ``finished_ms`` and ``unfinished_ms``. By both, sound and words: ``sure_ms`` if they agree that
    the turn is complete, ``doubtful_ms`` if only one of them says so. Whatever they say: ``limit_ms``.
    """

    finished_ms: int
    unfinished_ms: int
    sure_ms: int
    doubtful_ms: int
    limit_ms: int

    def by_both(self, probability: float, finished: bool) -> int:
        """``probability``: that the turn is complete by its sound; ``finished``: by its words."""
        most, least = (self.doubtful_ms, self.sure_ms) if finished else (self.limit_ms, self.doubtful_ms)
        doubt = min(1.0, max(0.0, (SURE - probability) / (SURE - UNSURE)))
        return round(least + (most - least) * doubt)


SURE, UNSURE = 0.85, 0.1
"""Probabilities from which, and up to which, the sound says all that it can say."""

PATIENCE = {
    "low": Patience(700, 2500, 400, 2000, 8000),
    "medium": Patience(400, 1300, 180, 1000, 4000),
    "auto": Patience(400, 1300, 180, 1000, 4000),
    "high": Patience(240, 700, 120, 600, 2000),
}
"""By the ``eagerness`` of the protocol, whose limits are OpenAI's."""


def is_listening(text: str) -> bool:
    """True if ``text`` only says that its speaker is listening ("mm-hm", "yeah, okay"), or nothing at all."""
    words = "".join(char if char.isalpha() or char.isspace() else " " for char in text.lower()).split()
    return len(words) <= 4 and all(word in _LISTENING for word in words)


def sounds_finished(text: str) -> bool:
    """True if nothing seems to be missing after ``text``."""
    text = text.strip().rstrip(_CLOSING).rstrip()
    if not text or text.endswith(_TRAILING) or text[-1] not in _ENDS:
        return False
    words = text.rstrip(_ENDS).split()
    return bool(words) and (words[-1].lower().strip(_CLOSING) not in _OPEN_WORDS or text[-1] != ".")
