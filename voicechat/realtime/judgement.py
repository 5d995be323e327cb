"""Does what was said sound finished? Judged by its words, for ``semantic_vad``. Pure.

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


@dataclass(frozen=True, slots=True)
class Patience:
    """Milliseconds of silence that end a turn: one that sounds finished, and one that does not."""

    finished_ms: int
    unfinished_ms: int


PATIENCE = {
    "low": Patience(700, 2500),
    "medium": Patience(400, 1300),
    "auto": Patience(400, 1300),
    "high": Patience(240, 700),
}
"""By the ``eagerness`` of the protocol."""


def sounds_finished(text: str) -> bool:
    """True if nothing seems to be missing after ``text``."""
    text = text.strip().rstrip(_CLOSING).rstrip()
    if not text or text.endswith(_TRAILING) or text[-1] not in _ENDS:
        return False
    words = text.rstrip(_ENDS).split()
    return bool(words) and (words[-1].lower().strip(_CLOSING) not in _OPEN_WORDS or text[-1] != ".")
