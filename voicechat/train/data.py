"""Training data of the Talker: codes, pointers, symbol rows and hidden states as flat arrays on the device."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.models.embedded.talker import ADVANCES, BOS, EOS, LEFT, NONE_SYMBOL, RIGHT
from voicechat.train.alignment import Ints, pointers
from voicechat.train.coded import CODES_FILE
from voicechat.train.common import Work, is_held_out
from voicechat.train.texts import hidden_path

logger = logging.getLogger("voicechat.train")

IGNORED = -100


@dataclass(frozen=True, slots=True)
class TalkerClip:
    """One clip. ``voice``: number; ``step``: offset of its ``steps + 1`` entries; ``row``: offset of its symbols."""

    voice: int
    text_set: str
    index: int
    step: int
    steps: int
    row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded sequences [B, T]: input tokens, targets (or :data:`IGNORED`), absolute row of the pointer; voices [B]."""

    inputs: Tensor
    targets: Tensor
    rows: Tensor
    voices: Tensor


class TalkerData:
    """All clips. ``symbols`` is padded by :data:`NONE_SYMBOL` around each clip, so that windows never cross clips."""

    def __init__(self, work: Work, thinkers: list[str], device: torch.device, held_out: int, longest: int) -> None:
        self.device = device
        self.train: list[TalkerClip] = []
        self.held: list[TalkerClip] = []
        self._symbols: list[npt.NDArray[Any]] = []
        self._targets: list[Ints] = []
        self._pointers: list[Ints] = []
        self._tokens: dict[str, list[Ints]] = {name: [] for name in thinkers}
        self._row = self._step = 0
        dropped = 0
        codes = load_codes(work)
        states: dict[str, list[npt.NDArray[np.float16]]] = {name: [] for name in thinkers}
        first_state = dict.fromkeys(thinkers, 0)
        for text_set in work.text_sets():
            hidden = {name: _Hidden.load(work, text_set, name, first_state[name]) for name in thinkers}
            for name, found in hidden.items():
                if found is not None:
                    states[name].append(found.states)
                    first_state[name] += len(found.states)
            for voice, name in enumerate(work.voices()):
                for index, symbols, ends, positions in spoken_clips(work, name, text_set):
                    own = codes.get((voice, text_set, index))
                    where = None if own is None or len(own) > longest else pointers(ends, len(own))
                    if own is None or where is None:
                        dropped += 1
                        continue
                    clip = TalkerClip(voice, text_set, index, self._step, len(own), self._row + LEFT, len(symbols))
                    (self.held if is_held_out(text_set, index, held_out) else self.train).append(clip)
                    self._add(clip, own, where, symbols, positions, hidden)
        logger.info("talker: %d clips to train on, %d held out, %d dropped", len(self.train), len(self.held), dropped)
        self.symbols = torch.from_numpy(np.concatenate(self._symbols).astype(np.int64)).to(device)
        self.targets = torch.from_numpy(np.concatenate(self._targets)).to(device)
        self.pointers = torch.from_numpy(np.concatenate(self._pointers)).to(device)
        self.tokens = {name: torch.from_numpy(np.concatenate(t)).to(device) for name, t in self._tokens.items() if t}
        self.states = {name: torch.from_numpy(np.concatenate(s)).to(device) for name, s in states.items() if s}
        self._symbols, self._targets, self._pointers, self._tokens = [], [], [], {}

    def _add(
        self,
        clip: TalkerClip,
        codes: npt.NDArray[np.int16],
        where: Ints,
        symbols: npt.NDArray[np.uint8],
        positions: npt.NDArray[np.int32],
        hidden: dict[str, _Hidden | None],
    ) -> None:
        self._targets.append(np.append(codes.astype(np.int64) * ADVANCES + np.diff(where), EOS))
        self._pointers.append(where + clip.row)
        self._symbols += [np.full(LEFT, NONE_SYMBOL), symbols, np.full(RIGHT, NONE_SYMBOL)]
        for name, found in hidden.items():
            tokens = np.full(LEFT + len(symbols) + RIGHT, -1, np.int64)
            if found is not None:
                tokens[LEFT : LEFT + len(symbols)] = found.tokens(clip.index, positions)
            self._tokens[name].append(tokens)
        self._step += len(codes) + 1
        self._row += LEFT + len(symbols) + RIGHT

    def batch(self, clips: list[TalkerClip]) -> Batch:
        """Pad some clips to one length."""
        starts = torch.tensor([clip.step for clip in clips], device=self.device)[:, None]
        lengths = torch.tensor([clip.steps + 1 for clip in clips], device=self.device)[:, None]
        steps = torch.arange(max(clip.steps for clip in clips) + 1, device=self.device)
        inside = steps < lengths
        index = starts + torch.minimum(steps, lengths - 1)
        targets = self.targets[index]
        inputs = torch.cat((torch.full_like(starts, BOS), targets[:, :-1].clamp(max=BOS - 1)), 1)
        voices = torch.tensor([clip.voice for clip in clips], device=self.device)
        return Batch(inputs, torch.where(inside, targets, IGNORED), self.pointers[index], voices)

    def windows(self, rows: Tensor) -> Tensor:
        """Symbol windows [..., 9] around absolute rows [...]."""
        return self.symbols[rows[..., None] + torch.arange(-LEFT, RIGHT + 1, device=self.device)]

    def hidden(self, thinker: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [..., H] at absolute rows, and where there are any [...]."""
        tokens = self.tokens[thinker][rows]
        return self.states[thinker][tokens.clamp(min=0)], tokens >= 0

    def batches(self, most_steps: int, rng: random.Random) -> list[list[TalkerClip]]:
        """One epoch, in batches of clips of like length, shuffled."""
        keyed = sorted(self.train, key=lambda clip: clip.steps * (1 + 0.08 * rng.random()))
        out: list[list[TalkerClip]] = []
        part: list[TalkerClip] = []
        longest = 0
        for clip in keyed:
            longest = max(longest, clip.steps + 1)
            if part and (len(part) + 1) * longest > most_steps:
                out.append(part)
                part, longest = [], clip.steps + 1
            part.append(clip)
        out.append(part)
        rng.shuffle(out)
        return out


@dataclass(frozen=True, slots=True)
class _Hidden:
    states: npt.NDArray[np.float16]
    starts: Ints
    ends: list[npt.NDArray[np.int32]]
    first: int

    @classmethod
    def load(cls, work: Work, text_set: str, thinker: str, first: int) -> _Hidden | None:
        path = hidden_path(work, text_set, thinker)
        if not path.exists():
            return None
        with np.load(path) as data:
            counts, ends = data["counts"], data["ends"]
            starts = np.concatenate(([0], np.cumsum(counts)))
            split = [ends[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]
            return cls(data["states"], starts, split, first)

    def tokens(self, index: int, positions: npt.NDArray[np.int32]) -> Ints:
        """State number of each row of text ``index``."""
        ends = self.ends[index]
        if not len(ends):
            return np.full(len(positions), -1, np.int64)
        tokens = np.minimum(np.searchsorted(ends, positions, side="right"), len(ends) - 1)
        return (self.first + int(self.starts[index]) + tokens).astype(np.int64)


def load_codes(work: Work) -> dict[tuple[int, str, int], npt.NDArray[np.int16]]:
    """Codes of all speech, by number of the voice, text set and index."""
    with np.load(work.file(CODES_FILE)) as data:
        parts = np.split(data["codes"], np.cumsum(data["counts"])[:-1])
        keys = zip(data["voice"].tolist(), data["text_set"].tolist(), data["index"].tolist(), strict=True)
        return dict(zip(keys, parts, strict=True))


def spoken_clips(
    work: Work, voice: str, text_set: str
) -> Iterator[tuple[int, npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
    """A voice's clips of a set: index, symbols, ends of their sound, positions of their words in the text."""
    for path in sorted(work.root.glob(f"speech/{voice}/{text_set}/[0-9]*.npz")):
        with np.load(path) as data:
            cuts = np.cumsum(data["rows"])[:-1]
            split = [np.split(data[name], cuts) for name in ("symbols", "ends", "positions")]
        for offset, (symbols, ends, positions) in enumerate(zip(*split, strict=True)):
            if len(symbols):
                yield int(path.stem) + offset, symbols, ends, positions
