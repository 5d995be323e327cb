"""All speech of a training in one long array on the training device, filled while the teacher still speaks."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from voicechat.models.embedded.voicebox import TOKEN_SAMPLES
from voicechat.train.codec import LABELS
from voicechat.train.common import SAMPLE_RATE, Work
from voicechat.train.speech import SPEECH_COMPLETE
from voicechat.train.texts import PLAIN

logger = logging.getLogger("voicechat.train")

LABEL_SAMPLES = TOKEN_SAMPLES // LABELS
_GAP = 5 * TOKEN_SAMPLES
_SHORTEST = TOKEN_SAMPLES * 8


@dataclass(frozen=True, slots=True)
class Clip:
    """Where one clip lies: text set, index in it, first token and number of tokens in the arena."""

    text_set: str
    index: int
    token: int
    tokens: int


def is_held_out(text_set: str, index: int, held_out: int) -> bool:
    """Whether a clip must never be trained on: the first ``held_out`` replies of each Thinker."""
    return text_set != PLAIN and index < held_out


class Arena:
    """``sound`` int16 [samples], ``labels`` uint8 [samples / 480]; clips begin on whole tokens, silence between.

    Held-out clips are kept beside it, in ``held`` (clip with token 0, sound int16 on the CPU).
    """

    def __init__(self, work: Work, hours: float, device: torch.device, held_out: int) -> None:
        self.work = work
        self.held_out = held_out
        tokens = int(hours * 3600 * SAMPLE_RATE) // TOKEN_SAMPLES
        self.sound = torch.zeros(tokens * TOKEN_SAMPLES, dtype=torch.int16, device=device)
        self.labels = torch.zeros(tokens * LABELS, dtype=torch.uint8, device=device)
        self.clips: list[Clip] = []
        self.held: list[tuple[Clip, Tensor]] = []
        self.filled = _GAP
        self.complete = False
        self._seen: set[Path] = set()

    @property
    def hours(self) -> float:
        """Hours of speech inside."""
        return sum(clip.tokens for clip in self.clips) * TOKEN_SAMPLES / SAMPLE_RATE / 3600

    @property
    def tokens(self) -> int:
        """Tokens filled so far, gaps included."""
        return self.filled // TOKEN_SAMPLES

    def poll(self, most: int = 1_000_000) -> int:
        """Take in up to ``most`` new shards; returns how many came. ``complete`` is set when no more can come."""
        complete = self.work.file(SPEECH_COMPLETE).exists()
        found = sorted(path for path in self.work.root.glob("speech/*/*.npz") if not path.name.startswith("."))
        fresh = [path for path in found if path not in self._seen]
        for path in fresh[:most]:
            self._seen.add(path)
            self._take(path)
        self.complete = complete and len(fresh) <= most
        return min(len(fresh), most)

    def wait(self, hours: float, watch: bool) -> None:
        """Until so much is here. Raises ``FileNotFoundError`` when there is no speech and none is awaited."""
        self.poll()
        while self.hours < hours and not self.complete and watch:
            time.sleep(0.5)
            self.poll()
        if not self.clips:
            raise FileNotFoundError("no speech: run the step 'speech' first")

    def _take(self, path: Path) -> None:
        with np.load(path) as shard:
            data = {name: shard[name] for name in ("samples", "rows", "pcm", "symbols", "ends")}
        start = int(path.stem)
        sample = row = 0
        for offset, (samples, rows) in enumerate(zip(data["samples"].tolist(), data["rows"].tolist(), strict=True)):
            pcm = data["pcm"][sample : sample + samples]
            symbols, ends = data["symbols"][row : row + rows], data["ends"][row : row + rows]
            sample, row = sample + samples, row + rows
            tokens = -(-samples // TOKEN_SAMPLES)
            if is_held_out(path.parent.name, start + offset, self.held_out):
                if samples:
                    self.held.append((Clip(path.parent.name, start + offset, 0, tokens), torch.from_numpy(pcm.copy())))
                continue
            if samples < _SHORTEST or self.filled + tokens * TOKEN_SAMPLES + 2 * _GAP > len(self.sound):
                continue
            first = self.filled
            self.sound[first : first + samples] = torch.from_numpy(pcm).to(self.sound.device)
            centres = np.arange(tokens * LABELS) * LABEL_SAMPLES + LABEL_SAMPLES // 2
            here = symbols[np.minimum(np.searchsorted(ends, centres, side="right"), rows - 1)]
            label = first // LABEL_SAMPLES
            self.labels[label : label + len(here)] = torch.from_numpy(here).to(self.labels.device)
            self.clips.append(Clip(path.parent.name, start + offset, first // TOKEN_SAMPLES, tokens))
            self.filled = first + tokens * TOKEN_SAMPLES + _GAP

    def windows(self, starts: Tensor, length: int) -> Tensor:
        """Float sound [B, length] from sample positions [B]."""
        index = starts[:, None] + torch.arange(length, device=starts.device)
        return self.sound[index].float() / 32768
