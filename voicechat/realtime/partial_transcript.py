"""What the user has said so far, told piece by piece while the turn is still open. Pure.

The ASR hears the turn again and again, each time from its beginning, and may change its mind about the last words. So a
word is only told once two texts in a row begin with the same words up to it. What was told is never taken back: the
pieces, joined, are the beginning of the turn's transcript, or, if the ASR changes its mind after all, of none; then no
piece follows, and the whole transcript stands as it comes at the end.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"\s*\S+")


class PartialTranscript:
    """One turn's."""

    def __init__(self) -> None:
        self.told = ""
        """What was told so far."""
        self._last: list[str] = []

    def hear(self, text: str) -> str:
        """Another text of the turn so far: the piece that can be told now, often empty."""
        words = _WORD.findall(text.strip())
        before, self._last = self._last, words
        agreed = 0
        while agreed < min(len(before), len(words)) and before[agreed] == words[agreed]:
            agreed += 1
        return self._tell("".join(words[:agreed]))

    def finish(self, text: str) -> str:
        """The transcript of the whole turn: its last piece, empty if all was told, or if it begins otherwise."""
        return self._tell(text)

    def _tell(self, text: str) -> str:
        if not text.startswith(self.told):
            return ""
        piece, self.told = text[len(self.told) :], text
        return piece
