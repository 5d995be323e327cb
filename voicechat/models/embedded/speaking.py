"""The Talker in its host and its engine's scheduler: text to rows, tokens to steps, and how far each may go.

A token says a code and how far the pointer into the text rows moves, so the pointer of every position follows from the
tokens alone. A text row is a symbol and the hidden row that belongs to it, -1 for none.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from voicechat.contract.family import Conditioning, EngineModel, Said, TalkerInside, TalkerRequest, TextRows
from voicechat.models.embedded import frontend
from voicechat.models.embedded.progress import Progress
from voicechat.models.embedded.talker import ADVANCES, BOS, EOS, RIGHT, split
from voicechat.reading.normaliser import Options

log = logging.getLogger(__name__)

STEPS_PER_SYMBOL = 8
"""Bound on a reply's length: no symbol sounds longer than this many steps of 40 ms on average."""
SPARE_STEPS = 50
"""Steps that any reply may take on top of that."""
LOOKAHEAD = 32
"""Text is read as far as this many rows (two to three seconds) ahead of the Talker; the rest waits, as text."""
READ_ROWS = 12
"""Rows after which reading takes a break, once the Talker has some: a long text must not keep the others waiting."""


class EmbeddedTalker:
    """See :class:`voicechat.contract.family.TalkerModel`. ``weights``: the trained weights, ``folder``: the LLM."""

    stop_ids = (EOS,)

    def __init__(
        self,
        *,
        folder: str,
        dtype: str,
        weights: str,
        thinker: str | None = None,
        projection: str | None = None,
        reading: Mapping[str, Any] | None = None,
    ) -> None:
        self._reading = Options(**(reading or {}))
        self.engine = EngineModel(folder=folder, dtype=dtype)
        self._weights, self._thinker, self._projection = weights, thinker, projection

    def load(self) -> None:
        """Read the lexicon."""
        frontend.load_g2p()

    def utterance(self, voice: int, *, max_rows: int, max_text_rows: int) -> EmbeddedUtterance:
        """See :class:`voicechat.contract.family.TalkerModel`."""
        return EmbeddedUtterance(voice, max_rows, max_text_rows, self._reading)

    def pace(self, facts: Mapping[str, int]) -> EmbeddedPace:
        """See :class:`voicechat.contract.family.TalkerModel`."""
        return EmbeddedPace(facts["pointer"])

    def conditioning(self, inside: TalkerInside) -> Conditioning:
        """By numpy, which suits a model on the CPU, or on the device."""
        from voicechat.models.embedded.conditioning import DeviceConditioning
        from voicechat.models.embedded.host_conditioning import HostConditioning
        from voicechat.models.embedded.talker import Conditioner

        conditioner = Conditioner.from_weights(self._weights, self._thinker, self._projection)
        if inside.on_host:
            return HostConditioning(inside.pool, conditioner)
        rows = inside.open_rows() if conditioner.hidden is not None else None
        return DeviceConditioning(inside.pool, conditioner, rows, inside.device)


class EmbeddedPace:
    """See :class:`voicechat.contract.family.Pace`: a step looks :data:`RIGHT` rows ahead of its pointer.

    A step whose token is on its way is taken to go on as far as it can.
    """

    def __init__(self, pointer: int) -> None:
        self._known = 0
        self._pointer = pointer

    def rows(self, tokens: Sequence[int], on_the_way: int) -> int:
        """See :class:`voicechat.contract.family.Pace`."""
        if self._known < len(tokens):
            # Few: numpy would be slower.
            self._pointer += sum(token % ADVANCES for token in tokens[self._known :] if token < BOS)
            self._known = len(tokens)
        return self._pointer + on_the_way * (ADVANCES - 1) + RIGHT + 1


class EmbeddedUtterance:
    """See :class:`voicechat.contract.family.Utterance`. Text is read a little ahead of the Talker, in windows."""

    def __init__(self, voice: int, max_rows: int, max_text_rows: int, reading: Options | None = None) -> None:
        self._voice = voice
        self._max_rows = max_rows
        self._lookahead = min(LOOKAHEAD, max_text_rows // 8)
        self._much = max_text_rows // 4
        self._frontend = frontend.TextFrontend(reading)
        self._progress = Progress()
        self._unread: deque[str] = deque()
        self._closed = False
        self._final = False
        self._sounds = False

    def push(self, pieces: Sequence[str], *, final: bool, note: bytes = b"") -> None:
        """See :class:`voicechat.contract.family.Utterance`."""
        self._unread.extend(pieces)
        self._closed |= final

    def read(self) -> TextRows | None:
        """See :class:`voicechat.contract.family.Utterance`."""
        if self._final:
            return None
        rows: list[Any] = []
        most = min(self._lookahead - self._progress.ahead, READ_ROWS)
        while self._unread and len(rows) < most:
            rows += self._frontend.push(self._unread.popleft())
        if self._closed and not self._unread:
            rows += self._frontend.finish()
            self._final = True
        if not rows and not self._final:
            return None
        symbols = [row.symbol for row in rows]
        self._progress.add_rows(symbols)
        self._sounds |= any(symbols)
        last = self._max_rows - 1
        return TextRows([(row.symbol, min(row.token, last)) for row in rows], self._final)

    @property
    def ready(self) -> bool:
        """The first step's window is there, or all of the text is."""
        return self._final or self._progress.rows > self._progress.base + RIGHT

    @property
    def silent(self) -> bool:
        """See :class:`voicechat.contract.family.Utterance`."""
        return self._final and not self._sounds

    def request(self) -> TalkerRequest:
        """See :class:`voicechat.contract.family.Utterance`."""
        return TalkerRequest([BOS], {"pointer": self._progress.base, "voice": self._voice})

    def take(self, tokens: Sequence[int], extra: bytes = b"") -> Said:
        """See :class:`voicechat.contract.family.Utterance`. What comes behind a window's end is not spoken."""
        progress, steps = self._progress, bytearray()
        end: Literal["", "window", "length"] = ""
        for token in tokens:
            if token < BOS and not end:
                code, advance = split(token)
                steps += code.to_bytes(2, "little")
                steps += progress.symbols()
                if progress.step(advance):
                    end = "window"
        if progress.steps > (progress.dropped + progress.rows) * STEPS_PER_SYMBOL + SPARE_STEPS:
            log.warning("a reply is broken off after %d steps, %d rows", progress.steps, progress.rows)
            end = "length"
        return Said(bytes(steps), end)

    def finish(self) -> Literal["end", "window"]:
        """See :class:`voicechat.contract.family.Utterance`. A Talker that stopped early is set on the next row."""
        progress = self._progress
        if self._final and progress.at_end:
            return "end"
        log.warning("the Talker stopped on row %d of %d", progress.pointer, progress.rows)
        return "window" if progress.skip() else "end"

    def drop(self) -> int:
        """See :class:`voicechat.contract.family.Utterance`. Rows stay until they fill a quarter of the lane."""
        return self._progress.drop() if self._progress.base > self._much else 0
