"""The Talker's conditioning on the CPU: by numpy, for all requests of a step at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voicechat.contract.family import Embed, Entry
from voicechat.contract.pool import Pool
from voicechat.models.embedded.talker import ADVANCES, BOS, LEFT, NONE_SYMBOL, RIGHT, Conditioner

Ints = npt.NDArray[np.int64]


def pointer_moves(tokens: Ints) -> Ints:
    """How many rows each token moves the pointer on: 0 for ids that carry no code."""
    return np.where(tokens < BOS, tokens % ADVANCES, 0)


class _Speaker:
    """One slot's request: its voice, where it began, and the pointer at the position that it has come to."""

    __slots__ = ("base", "pointer", "voice")

    def __init__(self, base: int, voice: int) -> None:
        self.base = self.pointer = base
        self.voice = voice


class HostConditioning:
    """See :class:`voicechat.contract.family.Conditioning`. Embeddings have to be there: there is no ``embed``."""

    def __init__(self, pool: Pool, conditioner: Conditioner) -> None:
        self._pool = pool
        self._conditioner = conditioner
        self._window = np.arange(-LEFT, RIGHT + 1)
        self._speakers: dict[int, _Speaker] = {}

    def begin(self, slot: int, generation: int, facts: Mapping[str, int]) -> None:
        """See :class:`voicechat.contract.family.Conditioning`."""
        self._speakers[slot] = _Speaker(facts["pointer"], facts["voice"])

    @torch.inference_mode()
    def step(self, entries: Sequence[Entry], ids: torch.Tensor, embeddings: torch.Tensor, embed: Embed | None) -> None:
        """See :class:`voicechat.contract.family.Conditioning`."""
        if embed is not None:
            embeddings.copy_(embed(ids))
        where: list[int] = []
        slots: list[int] = []
        voices: list[int] = []
        pointers: list[int] = []
        bases: list[int] = []
        tokens, offset = ids.numpy(), 0
        for entry in entries:
            count = entry.count
            if entry.slot is not None:
                speaker = self._speakers[entry.slot]
                if entry.start == 0:
                    speaker.pointer = speaker.base
                walked = speaker.pointer + np.cumsum(pointer_moves(tokens[offset : offset + count].astype(np.int64)))
                speaker.pointer = int(walked[-1])
                where.extend(range(offset, offset + count))
                slots.extend([entry.slot] * count)
                voices.extend([speaker.voice] * count)
                pointers.extend(walked.tolist())
                bases.extend([speaker.base] * count)
            offset += count
        if where:
            symbols, hidden, has_hidden = self._gather(np.array(slots), np.array(pointers), np.array(bases))
            added = self._conditioner(symbols, hidden, has_hidden, torch.tensor(voices))
            embeddings[torch.tensor(where)] += added.to(embeddings.dtype)

    def _gather(self, slots: Ints, pointers: Ints, bases: Ints) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each pointer: its window of symbols ``[n, LEFT+1+RIGHT]``, hidden row ``[n, hidden]``, if it has one."""
        pool = self._pool
        ready = pool.text_ready[slots]
        last = np.maximum(ready - 1, 0)
        places = pointers[:, None] + self._window
        inside = (places >= bases[:, None]) & (places < ready[:, None])
        clipped = np.clip(places, 0, last[:, None])
        symbols = np.where(inside, pool.text[slots[:, None], clipped, 0], NONE_SYMBOL)
        tokens = pool.text[slots, np.minimum(pointers, last), 1].astype(np.int64)
        has_hidden = tokens >= 0
        rows = torch.from_numpy(pool.read_hidden(slots, np.maximum(tokens, 0))).view(torch.bfloat16)
        return torch.from_numpy(symbols.astype(np.int64)), rows.float(), torch.from_numpy(has_hidden)

    def sampled(self, entries: Sequence[Entry], tokens: torch.Tensor, hidden: torch.Tensor) -> None:
        """A token says all."""

    def capture(self, most: int, ids: Any, embeddings: Any, embed: Embed | None) -> None:
        """There are no CUDA graphs here."""
