"""The Talker's side: text rows of three columns, four codebooks a step, and the predictor of three of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file

from chimes.family import BOOKS, CODES, STEPS_PER_ROW
from voicechat.contract.family import EngineModel, Entry, Said, TalkerInside, TalkerRequest, TextRows

PROMPT, REPLY = 0, 1
"""Kinds of text rows; the others columns are a hidden row (-1: none) and a word's number."""
PAD, BOS = CODES, CODES + 1


class ChimesTalker:
    """See :class:`voicechat.contract.family.TalkerModel`."""

    stop_ids = ()

    def __init__(self, folder: str) -> None:
        self.engine = EngineModel(folder=folder, dtype="float32")
        self._folder = folder

    def load(self) -> None:
        pass

    def utterance(self, voice: int, *, max_rows: int, max_text_rows: int) -> ChimesUtterance:
        return ChimesUtterance(voice, hidden=max_rows > 0)

    def pace(self, facts: Mapping[str, int]) -> ChimesPace:
        return ChimesPace(facts["prompt_rows"])

    def conditioning(self, inside: TalkerInside) -> ChimesConditioning:
        return ChimesConditioning(self._folder, inside)


class ChimesPace:
    """All rows of the prompt at once, then one for every few steps."""

    def __init__(self, prompt: int) -> None:
        self._prompt = prompt

    def rows(self, tokens: Sequence[int], on_the_way: int) -> int:
        steps = max(0, len(tokens) - self._prompt - 1) + on_the_way
        return self._prompt + steps // STEPS_PER_ROW + 1


class ChimesUtterance:
    """A word sounds for four steps."""

    def __init__(self, voice: int, *, hidden: bool) -> None:
        self._voice, self._hidden = voice, hidden
        self._prompt = self._words = self._steps = 0
        self._due: list[tuple[int, int, int]] = []
        self._final = False

    def push(self, pieces: Sequence[str], *, final: bool, note: bytes) -> None:
        if note:
            self._prompt = int.from_bytes(note, "little")
            self._due += [(PROMPT, row, 0) for row in range(self._prompt)]
        for word in " ".join(pieces).split():  # a token is a word, however they are cut into pieces
            hidden = self._prompt - 1 + self._words if self._hidden else -1
            self._words += 1
            self._due.append((REPLY, hidden, word_number(word)))
        self._final |= final

    def read(self) -> TextRows | None:
        due, self._due = self._due, []
        return TextRows(due, self._final) if due or self._final else None

    @property
    def ready(self) -> bool:
        return self._words > 0

    @property
    def silent(self) -> bool:
        return self._final and not self._words

    def request(self) -> TalkerRequest:
        return TalkerRequest([PAD] * self._prompt + [BOS], {"prompt_rows": self._prompt, "voice": self._voice})

    def take(self, tokens: Sequence[int], extra: bytes) -> Said:
        said = bytearray()
        for number, token in enumerate(tokens):
            if self._steps < self._words * STEPS_PER_ROW:
                said.append(token % CODES)
                said += extra[number * (BOOKS - 1) : (number + 1) * (BOOKS - 1)]
                self._steps += 1
        over = self._final and self._steps == self._words * STEPS_PER_ROW
        return Said(bytes(said), "end" if over else "")

    def finish(self) -> Literal["end", "window"]:
        return "end"

    def drop(self) -> int:
        return 0


def word_number(word: str) -> int:
    return zlib.crc32(word.encode()) % CODES


class Predictor:
    """The weights beside the Talker. All in float32."""

    def __init__(self, folder: str) -> None:
        tensors = load_file(str(Path(folder) / "chimes.st"))
        self.rows, self.words, self.voices = tensors["rows"], tensors["words"], tensors["voices"]
        self.books, self.heads = tensors["books"], tensors["heads"]

    def further(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Tokens ``[n]`` and the states they were drawn from ``[n, WIDTH]`` to further codes ``[n, 3]``."""
        codes, state = [], hidden.float() + self.words[tokens % CODES]
        for book in range(BOOKS - 1):
            code = (state @ self.heads[book].T).argmax(-1)
            state = state + self.books[book][code]
            codes.append(code)
        return torch.stack(codes, 1)

    def added(self, kind: int, row: torch.Tensor | None, word: int) -> torch.Tensor:
        """What a text row adds to an embedding ``[WIDTH]``.

        Of a hidden row the signs count: another order of sums, in a batch, may round its bfloat16 to the next number.
        """
        made = self.words[word] if kind == REPLY else torch.zeros_like(self.words[0])
        return made if row is None else made + self.rows @ row.float().sign()

    def of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """What further codes ``[3]`` add."""
        return sum((self.books[book][code] for book, code in enumerate(codes.tolist())), torch.zeros(1))


class ChimesConditioning:
    """See :class:`voicechat.contract.family.Conditioning`. One request after another: it is small."""

    def __init__(self, folder: str, inside: TalkerInside) -> None:
        self._pool, self._weights = inside.pool, Predictor(folder)
        self._facts: dict[int, Mapping[str, int]] = {}
        self._codes: dict[tuple[int, int], torch.Tensor] = {}

    def begin(self, slot: int, generation: int, facts: Mapping[str, int]) -> None:
        self._facts[slot] = facts
        self._codes = {place: codes for place, codes in self._codes.items() if place[0] != slot}

    @torch.inference_mode()
    def step(self, entries: Sequence[Entry], ids: torch.Tensor, embeddings: torch.Tensor, embed: Any) -> None:
        offset = 0
        for entry in entries:
            if entry.slot is not None:
                for place in range(entry.count):
                    at = entry.start + place
                    embeddings[offset + place] = self._embedding(entry.slot, at, embeddings[offset + place])
            offset += entry.count

    def _embedding(self, slot: int, at: int, plain: torch.Tensor) -> torch.Tensor:
        facts, weights = self._facts[slot], self._weights
        prompt = facts["prompt_rows"]
        if at < prompt:
            return self._text(slot, at)
        made = plain + weights.voices[facts["voice"]]
        if at > prompt:
            made = made + weights.of_codes(self._codes[slot, at])
        row = prompt + (at - prompt) // STEPS_PER_ROW
        return made + self._text(slot, row) if row < int(self._pool.text_ready[slot]) else made

    def _text(self, slot: int, row: int) -> torch.Tensor:
        kind, hidden, word = self._pool.text[slot, row].tolist()
        state = None
        if hidden >= 0:
            bits = self._pool.read_hidden(np.array([slot]), np.array([hidden]))
            state = torch.from_numpy(bits).view(torch.bfloat16)[0]
        return self._weights.added(kind, state, word)

    @torch.inference_mode()
    def sampled(self, entries: Sequence[Entry], tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        codes = self._weights.further(tokens.long(), hidden)
        for entry, made in zip(entries, codes, strict=True):
            if entry.slot is not None:
                self._codes[entry.slot, entry.start + entry.count] = made
        return codes.to(torch.uint8)

    def capture(self, most: int, ids: Any, embeddings: Any, embed: Any) -> None:
        pass
