"""All speech of a training in one long array on the training device, filled while the teacher still speaks."""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from voicechat.models.embedded.voicebox import TOKEN_SAMPLES
from voicechat.train.codec import LABELS
from voicechat.train.common import SAMPLE_RATE, Work, is_held_out
from voicechat.train.speech import SPEECH_COMPLETE

logger = logging.getLogger("voicechat.train")

LABEL_SAMPLES = TOKEN_SAMPLES // LABELS
_GAP = 5 * TOKEN_SAMPLES
_SHORTEST = TOKEN_SAMPLES * 8


@dataclass(frozen=True, slots=True)
class Clip:
    """Where one clip lies: number of its voice, text set, index in it, first token and tokens in the arena."""

    voice: int
    text_set: str
    index: int
    token: int
    tokens: int


class Arena:
    """``sound`` int16 [samples], ``labels`` uint8 [samples / 480], ``voices`` uint8 [tokens].

    Clips begin on whole tokens, with silence between.
    Held-out clips are kept beside it, in ``held`` (clip with token 0, sound int16 on the CPU).
    """

    def __init__(self, work: Work, hours: float, device: torch.device, held_out: int) -> None:
        self.work = work
        self.held_out = held_out
        tokens = int(hours * 3600 * SAMPLE_RATE) // TOKEN_SAMPLES
        self.sound = torch.zeros(tokens * TOKEN_SAMPLES, dtype=torch.int16, device=device)
        self.labels = torch.zeros(tokens * LABELS, dtype=torch.uint8, device=device)
        self.voices = torch.zeros(tokens, dtype=torch.uint8, device=device)
        self.clips: list[Clip] = []
        self.held: list[tuple[Clip, Tensor]] = []
        self.filled = _GAP
        self.complete = False
        self._seen: set[Path] = set()
        self._places: list[Tensor] = []

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
        found = [path for path in self.work.root.glob("speech/*/*/*.npz") if not path.name.startswith(".")]
        fresh = sorted((path for path in found if path not in self._seen), key=_shuffled)
        for path in fresh[:most]:
            self._seen.add(path)
            self._take(path)
        if fresh:
            filled = self.voices[: max(1, self.tokens)]
            places = [torch.nonzero(filled == voice)[:, 0] for voice in range(len(self.work.voices()))]
            self._places = [found for found in places if len(found)]
        self.complete = complete and len(fresh) <= most
        return min(len(fresh), most)

    def wait(self, hours: float, watch: bool) -> None:
        """Until so much is here. Raises ``FileNotFoundError`` when there is no speech and none is awaited."""
        self.poll()
        while (not self.clips or self.hours < hours) and not self.complete and watch:
            time.sleep(0.5)
            self.poll()
        if not self.clips:
            raise FileNotFoundError("no speech: run the step 'speech' first")

    def _take(self, path: Path) -> None:
        with np.load(path) as shard:
            data = {name: shard[name] for name in ("samples", "rows", "pcm", "symbols", "ends")}
        start, text_set = int(path.stem), path.parent.name
        voice = self.work.voices().index(path.parent.parent.name)
        sample = row = 0
        for offset, (samples, rows) in enumerate(zip(data["samples"].tolist(), data["rows"].tolist(), strict=True)):
            pcm = data["pcm"][sample : sample + samples]
            symbols, ends = data["symbols"][row : row + rows], data["ends"][row : row + rows]
            sample, row = sample + samples, row + rows
            tokens = -(-samples // TOKEN_SAMPLES)
            if is_held_out(text_set, start + offset, self.held_out):
                if samples:
                    clip = Clip(voice, text_set, start + offset, 0, tokens)
                    self.held.append((clip, torch.from_numpy(pcm.copy())))
                continue
            if samples < _SHORTEST or self.filled + tokens * TOKEN_SAMPLES + 2 * _GAP > len(self.sound):
                continue
            first = self.filled
            self.sound[first : first + samples] = torch.from_numpy(pcm).to(self.sound.device)
            centres = np.arange(tokens * LABELS) * LABEL_SAMPLES + LABEL_SAMPLES // 2
            here = symbols[np.minimum(np.searchsorted(ends, centres, side="right"), rows - 1)]
            label = first // LABEL_SAMPLES
            self.labels[label : label + len(here)] = torch.from_numpy(here).to(self.labels.device)
            token = first // TOKEN_SAMPLES
            self.voices[token : token + tokens + _GAP // TOKEN_SAMPLES] = voice
            self.clips.append(Clip(voice, text_set, start + offset, token, tokens))
            self.filled = first + tokens * TOKEN_SAMPLES + _GAP

    def draw(self, count: int, window: int) -> Tensor:
        """First tokens [count] of windows of ``window`` tokens; all voices that are here come equally often."""
        parts = []
        for number, places in enumerate(self._places):
            own = count * (number + 1) // len(self._places) - count * number // len(self._places)
            parts.append(places[torch.randint(0, len(places), (own,), device=places.device)])
        return torch.cat(parts).clamp(max=max(0, self.tokens - window - 1))

    def windows(self, starts: Tensor, length: int) -> Tensor:
        """Float sound [B, length] from sample positions [B]."""
        index = starts[:, None] + torch.arange(length, device=starts.device)
        return self.sound[index].float() / 32768


def _shuffled(path: Path) -> int:
    """A fixed, random-looking order: all voices and sets come in from the start."""
    return zlib.crc32("/".join(path.parts[-3:]).encode())
