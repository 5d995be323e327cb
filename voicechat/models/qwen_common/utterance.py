"""What the Utterances of the Qwen-Omni Talkers share: text rows as the Thinker's text comes, one request for a reply.

Each position of the Talker's sequence has one text row of :data:`COLUMNS` integers: kind (:data:`TEXT`, …), number of
the hidden row or of the token, code that is added (-1: none), place in time, height and width. After the prompt's
positions follow the further tokens of the text, one a step, and the text's end; then the Talker pads by itself.

A text that is given to be read out comes without a prompt and without hidden rows: its tokens are named by their
numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from voicechat.contract.family import Said, TalkerRequest, TextRows
from voicechat.models.qwen_common.note import Note

TEXT, SENSED, TOKEN = range(3)
"""Kinds of rows: the Thinker's row of a token, or of a sound or an image, out of a hidden row; a token of the Thinker's
by its number."""
COLUMNS = 6
_SPARE_SECONDS, _SECONDS_PER_TOKEN = 8, 2
"""Bound on a reply's length."""


class OmniUtterance(ABC):
    """See :class:`voicechat.contract.family.Utterance`. ``encode``: a text to the Thinker's tokens."""

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        *,
        text_end: int,
        steps_a_second: float,
        max_rows: int,
    ) -> None:
        self._encode = encode
        self._text_end = text_end
        self._rate = steps_a_second
        self._max_rows = max_rows
        self._note: Note | None = None
        self._pieces = 0
        self._tokens: list[int] = []
        self._closed = False
        self._read = 0
        """Tokens of the text that have a text row."""
        self._final = False
        self._steps = 0

    @abstractmethod
    def _beginning(self) -> list[tuple[int, ...]]:
        """Text rows of all positions of the request's prompt, the first token of the text among them."""

    def push(self, pieces: Sequence[str], *, final: bool, note: bytes) -> None:
        """See the interface."""
        if note and self._note is None:
            self._note = Note.decode(note)
        self._pieces += len(pieces)
        if not self._max_rows:
            self._tokens += self._encode("".join(pieces))
        self._closed |= final

    def read(self) -> TextRows | None:
        """The hidden row of a token is there once the token after it, or the end of the text, is announced."""
        if self._final:
            return None
        spoken = len(self._tokens) if not self._max_rows else max(self._pieces - 1, 0)
        if self._note is not None:
            spoken = min(spoken, self._max_rows - self._note.length)
        rows: list[tuple[int, ...]] = []
        if spoken and not self._read:
            rows += self._beginning()
        rows += [(*self._token(token), -1, 0, 0, 0) for token in range(max(self._read, 1), spoken)]
        self._read = max(self._read, spoken)
        if self._closed:
            self._final = True
            rows.append((TOKEN, self._text_end, -1, 0, 0, 0))
        elif not rows:
            return None
        return TextRows(rows, self._final)

    def _token(self, number: int) -> tuple[int, int]:
        """Kind and value of a token of the text."""
        if not self._max_rows:
            return TOKEN, self._tokens[number]
        assert self._note is not None
        return TEXT, self._note.length + number

    @property
    def ready(self) -> bool:
        """See the interface."""
        return self._read > 0

    @property
    def silent(self) -> bool:
        """See the interface."""
        return self._final and not self._read

    @abstractmethod
    def request(self) -> TalkerRequest:
        """The only request of a reply."""

    @abstractmethod
    def take(self, tokens: Sequence[int], extra: bytes) -> Said:
        """See the interface."""

    def _said(self, steps: bytes) -> Said:
        """``steps``, counted in :attr:`_steps` already; with ``length`` if far more was said than the text has."""
        seconds = _SPARE_SECONDS + _SECONDS_PER_TOKEN * self._read
        return Said(steps, "length" if self._final and self._steps > seconds * self._rate else "")

    def finish(self) -> Literal["end", "window"]:
        """A reply is one request."""
        return "end"

    def drop(self) -> int:
        """Nothing is dropped: a reply is one request."""
        return 0


class OmniPace:
    """See :class:`voicechat.contract.family.Pace`: a position, a row."""

    def rows(self, tokens: Sequence[int], on_the_way: int) -> int:
        """See the interface."""
        return len(tokens) + on_the_way
