"""All speech of a training in one long array on the training device, filled while the teacher still speaks."""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.models.embedded.alphabet import NONE_SYMBOL, SYMBOL_WINDOW
from voicechat.models.embedded.source import HOP
from voicechat.models.embedded.voicebox import FRAMES_PER_TOKEN, TOKEN_SAMPLES
from voicechat.train.alignment import pointers, windows
from voicechat.train.codec import LABELS
from voicechat.train.common import SAMPLE_RATE, Work, is_held_out
from voicechat.train.pitch import Track, track_pitch
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


@dataclass(frozen=True, slots=True)
class Held:
    """A held-out clip (its ``token`` is 0): sound int16 [N] and what its steps see of the text, uint8 [T, 9]; CPU."""

    clip: Clip
    sound: Tensor
    symbols: Tensor


class Arena:
    """``sound`` int16 [samples], ``labels`` uint8 [samples / 480], ``voices`` uint8 [tokens], ``symbols`` uint8
    [tokens, 9], and the pitch's ``track`` [tokens * 4].

    Clips begin on whole tokens, with silence between. Held-out clips are kept beside it, in ``held``.
    """

    def __init__(self, work: Work, hours: float, device: torch.device, held_out: int) -> None:
        self.work = work
        self.held_out = held_out
        tokens = int(hours * 3600 * SAMPLE_RATE) // TOKEN_SAMPLES
        self.sound = torch.zeros(tokens * TOKEN_SAMPLES, dtype=torch.int16, device=device)
        self.labels = torch.zeros(tokens * LABELS, dtype=torch.uint8, device=device)
        self.voices = torch.zeros(tokens, dtype=torch.uint8, device=device)
        self.symbols = torch.full((tokens, SYMBOL_WINDOW), NONE_SYMBOL, dtype=torch.uint8, device=device)
        frames = tokens * FRAMES_PER_TOKEN
        pitch, middles = (torch.zeros(frames, dtype=torch.float16, device=device) for _ in range(2))
        self.track = Track(pitch, middles, torch.zeros(frames, dtype=torch.bool, device=device))
        self.clips: list[Clip] = []
        self.held: list[Held] = []
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
        begun = self.filled
        for offset, (samples, rows) in enumerate(zip(data["samples"].tolist(), data["rows"].tolist(), strict=True)):
            pcm = data["pcm"][sample : sample + samples]
            symbols, ends = data["symbols"][row : row + rows], data["ends"][row : row + rows]
            sample, row = sample + samples, row + rows
            if samples < _SHORTEST:
                continue
            tokens = -(-samples // TOKEN_SAMPLES)
            where = pointers(ends, tokens)
            if where is None:
                continue
            clip = Clip(voice, text_set, start + offset, self.filled // TOKEN_SAMPLES, tokens)
            seen = torch.from_numpy(windows(symbols, where[:-1]))
            if is_held_out(text_set, start + offset, self.held_out):
                self.held.append(Held(replace(clip, token=0), torch.from_numpy(pcm.copy()), seen))
            elif self.filled + tokens * TOKEN_SAMPLES + 2 * _GAP <= len(self.sound):
                self._put(clip, pcm, symbols, ends, seen)
        if self.filled > begun:
            self._follow_pitch(begun, self.filled)

    def _put(
        self, clip: Clip, pcm: npt.NDArray[np.int16], symbols: npt.NDArray[Any], ends: npt.NDArray[Any], seen: Tensor
    ) -> None:
        """Copy a clip to its place, which is where the arena is filled to."""
        first = self.filled
        self.sound[first : first + len(pcm)] = torch.from_numpy(pcm).to(self.sound.device)
        centres = np.arange(clip.tokens * LABELS) * LABEL_SAMPLES + LABEL_SAMPLES // 2
        here = symbols[np.minimum(np.searchsorted(ends, centres, side="right"), len(ends) - 1)]
        label = first // LABEL_SAMPLES
        self.labels[label : label + len(here)] = torch.from_numpy(here).to(self.labels.device)
        self.voices[clip.token : clip.token + clip.tokens + _GAP // TOKEN_SAMPLES] = clip.voice
        self.symbols[clip.token : clip.token + clip.tokens] = seen.to(self.symbols.device)
        self.clips.append(clip)
        self.filled = first + clip.tokens * TOKEN_SAMPLES + _GAP

    def _follow_pitch(self, first: int, last: int) -> None:
        """Of samples ``first`` to ``last``, both at the edge of a token."""
        found = track_pitch(self.sound[None, first:last].float() / 32768)
        for kept, new in zip(self.track, found, strict=True):
            kept[first // HOP : last // HOP] = new[0].to(kept.dtype)

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

    def tracks(self, starts: Tensor, length: int) -> Track:
        """The pitch [B, length] from frames (10 ms) [B] on, as floats."""
        index = starts[:, None] + torch.arange(length, device=starts.device)
        pitch, middles, voiced = self.track
        return Track(pitch[index].float(), middles[index].float(), voiced[index])


def _shuffled(path: Path) -> int:
    """A fixed, random-looking order: all voices and sets come in from the start."""
    return zlib.crc32("/".join(path.parts[-3:]).encode())
