"""The ears on a GPU: the same Whisper as on the CPU, in PyTorch, many sounds at once.

They hear as :class:`voicechat.models.ears.whisper.Ears` does, with the same short windows and the same bounds, but
always greedily. Neither faster-whisper nor CTranslate2, whose CUDA is of another version, is imported. All but the
capture of CUDA graphs runs on the CPU as well, where it is tested.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer

from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription
from voicechat.models.ears.folder import ears_facts
from voicechat.models.ears.pieces import FRAMES_PER_SECOND, RATE, WINDOW_SECONDS, Pcm, cut
from voicechat.models.ears.refusal import check_options
from voicechat.models.ears.repeats import doubtful
from voicechat.models.ears.whisper import (
    FULL_TOKENS,
    LEAST_SECONDS,
    NO_SPEECH,
    SILENCE_SECONDS,
    SPARE_TOKENS,
    TOKENS_PER_SECOND,
    is_nothing,
    joined,
    settled_hearing,
)
from voicechat.models.ears.whisper_net import LogMel, Whisper, read_weights
from voicechat.models.graphs import Captured, batch_sizes, capture, fitting

FULL_FRAMES = int(WINDOW_SECONDS * FRAMES_PER_SECOND)
GRID_FRAMES = 240
"""Lengths of batches are multiples of this: the GPU's libraries choose their kernels anew for every new length."""
LOOK_STEPS = 4
"""The decoder's graphs are replayed this often between two looks at whether all rows are over."""


@dataclass(frozen=True)
class _Piece:
    """A sound of at most 30 s, ``frames`` of window and at most ``tokens`` of text; ``short``: of a short window."""

    pcm: Pcm
    frames: int
    tokens: int
    short: bool
    options: HearingOptions = PLAIN


@dataclass(frozen=True)
class Said:
    """What the decoder makes of a sound: tokens, how likely it holds no speech, the tokens' mean log probability."""

    tokens: list[int]
    no_speech: float
    log_probability: float
    language: str = "en"


def _short(pcm: Pcm, options: HearingOptions = PLAIN) -> _Piece:
    """A piece with as short a window as may be."""
    seconds = len(pcm) / RATE
    window = max(LEAST_SECONDS, seconds + SILENCE_SECONDS)
    if window >= WINDOW_SECONDS:
        return _full(pcm, options)
    most = int(SPARE_TOKENS + TOKENS_PER_SECOND * seconds)
    return _Piece(pcm, int(window * FRAMES_PER_SECOND) // 2 * 2, most, True, options)


def _full(pcm: Pcm, options: HearingOptions = PLAIN) -> _Piece:
    return _Piece(pcm, FULL_FRAMES, FULL_TOKENS, False, options)


class TorchEars:
    """Speech to text. ``folder`` holds a CTranslate2 Whisper model; at most ``max_batch`` windows are heard at once.

    On a GPU weights and products are of float16, else of float32. ``graphs``: capture CUDA graphs of the decoder's
    step, for batches of 1, 2, 4, … ``max_batch``; a smaller batch is filled up. For one thread at a time. ``language``
    is what multilingual ears are to hear if nobody says; None: they find out. Of :class:`HearingOptions` the prompt and
    the temperature change nothing here, and words have no times.
    Raises OSError and ValueError for a folder that holds no such model.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: torch.device,
        max_batch: int,
        graphs: bool = False,
        language: str | None = None,
    ) -> None:
        path = Path(folder)
        self.facts = msgspec.structs.replace(ears_facts(path), words=False)
        self._default = language
        on_gpu = device.type == "cuda"
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self._tokenizer: Any = Tokenizer.from_file(str(path / "tokenizer.json"))
        self._start, self._end = self._id("startoftranscript"), self._id("endoftext")
        self._untimed, self._no_speech = self._id("notimestamps"), self._id("nospeech", "nocaptions")
        many = self.facts.languages if self.facts.translates else ()
        self._languages = {language: self._id(language) for language in many}
        self._tasks = {translate: self._id("translate" if translate else "transcribe") for translate in (False, True)}
        self._device = device
        self._sizes = batch_sizes(max_batch)
        self._graphs: dict[int, Captured[torch.Tensor]] = {}
        with torch.inference_mode():
            self._net = net = Whisper(
                read_weights(path / "model.bin"), device, torch.float16 if on_gpu else torch.float32
            )
            self._features = LogMel(net.mels).to(device)
            forbidden = torch.zeros((2, net.vocabulary), dtype=torch.float32)
            forbidden[:, config["suppress_ids"]] = float("-inf")
            forbidden[0, config["suppress_ids_begin"]] = float("-inf")
            self._forbidden = forbidden.to(device)
            # All that a step reads and writes, in one place for as long as there are graphs of it.
            self._token = torch.zeros(max_batch, dtype=torch.int64, device=device)
            self._said = torch.zeros((max_batch, FULL_TOKENS + 8), dtype=torch.int64, device=device)
            self._over = torch.zeros(max_batch, dtype=torch.bool, device=device)
            self._most = torch.zeros(max_batch, dtype=torch.int64, device=device)
            self._chance = torch.zeros(max_batch, dtype=torch.float32, device=device)
            self._position = torch.zeros(1, dtype=torch.int64, device=device)
            self._bias = torch.zeros(net.vocabulary, dtype=torch.float32, device=device)
            self._text = net.cache(max_batch, self._said.shape[1])
            self._sound = net.cache(max_batch, net.positions)
            self._deaf = torch.zeros((max_batch, 1, 1, net.positions), dtype=net.dtype, device=device)
            if graphs:
                self._capture()

    def _id(self, *names: str) -> int:
        """The first of these special tokens that there is."""
        for name in names:
            if (number := self._tokenizer.token_to_id(f"<|{name}|>")) is not None:
                return int(number)
        raise ValueError(f"the tokenizer has no token {' or '.join(names)}")

    def _capture(self) -> None:
        """Capture the step for all sizes. For CUDA only."""
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        for size in reversed(self._sizes):
            self._graphs[size] = capture(partial(self._step, size), stream, pool, self._position.zero_)

    def warm_up(self) -> None:
        """Run on noise, so that the first real question meets warm code: on a GPU once for each shape of a batch."""
        noise = np.random.default_rng(0).normal(0, 0.01, RATE).astype(np.float32)
        self.transcribe([noise])
        if self._device.type == "cuda":
            lengths = range(int(LEAST_SECONDS * FRAMES_PER_SECOND), FULL_FRAMES + GRID_FRAMES, GRID_FRAMES)
            for frames in (min(length, FULL_FRAMES) for length in lengths):
                for size in self._sizes:
                    # one row is shorter than the others, so that the masked kernels are met, then none
                    for less in (2, 0):
                        rows = [_Piece(noise, frames - less, 1, True)] + [_Piece(noise, frames, 1, True)] * (size - 1)
                        self.decode(rows)
            torch.cuda.synchronize(self._device)

    def check(self) -> None:
        """Raises RuntimeError if the device is lost, as it is after some faults."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def transcribe(self, sounds: Sequence[Pcm]) -> list[str]:
        """Texts of float32 mono 16 kHz sounds, each of shape ``[samples]``; empty for silence."""
        return [heard.text for heard in self.hear([(sound, PLAIN) for sound in sounds])]

    def hear(self, jobs: Sequence[tuple[Pcm, HearingOptions]]) -> list[Transcription]:
        """What is heard in such sounds, each as its options say. Raises :class:`EarsRefusal`."""
        for _, options in jobs:
            check_options(self.facts, options)
        pieces = [
            (number, _short(piece, options)) for number, (sound, options) in enumerate(jobs) for piece in cut(sound)
        ]
        texts = self._transcribe([piece for _, piece in pieces])
        found: list[list[Transcription]] = [[] for _ in jobs]
        for (number, piece), heard in zip(pieces, texts, strict=True):
            found[number].append(settled_hearing(heard, piece.pcm))
        return [joined(parts) for parts in found]

    def _transcribe(self, pieces: Sequence[_Piece]) -> list[Transcription]:
        """What is heard in pieces; those that are too long for a short window are made again with the full one."""
        texts: list[Transcription | None] = [None] * len(pieces)
        order = sorted(range(len(pieces)), key=lambda number: pieces[number].frames)
        for begin in range(0, len(order), self._sizes[-1]):
            batch = order[begin : begin + self._sizes[-1]]
            for number, said in zip(batch, self.decode([pieces[number] for number in batch]), strict=True):
                texts[number] = self._text_of(pieces[number], said)
        if again := [number for number, text in enumerate(texts) if text is None]:
            whole = [_full(pieces[number].pcm, pieces[number].options) for number in again]
            for number, heard in zip(again, self._transcribe(whole), strict=True):
                texts[number] = heard
        return [text or Transcription("") for text in texts]

    def _text_of(self, piece: _Piece, said: Said) -> Transcription | None:
        """What a piece says; None if a short window says too much, or something again."""
        language = "en" if piece.options.translate else said.language
        if is_nothing(said.no_speech, said.log_probability):
            return Transcription("", language, said.log_probability, said.no_speech)
        text = str(self._tokenizer.decode([token for token in said.tokens if token < self._end])).strip()
        if piece.short and (len(said.tokens) > piece.tokens or doubtful(text)):
            return None
        return Transcription(text, language, said.log_probability, said.no_speech, written=len(said.tokens))

    def features(self, pieces: Sequence[_Piece]) -> torch.Tensor:
        """Features of pieces, ``[batch, mels, frames]``, as long as the longest window, rounded up to the grid.

        Behind a sound there is silence in a short window, but zeros in a full one: so it is in faster-whisper.
        """
        longest = min(FULL_FRAMES, -(-max(piece.frames for piece in pieces) // GRID_FRAMES) * GRID_FRAMES)
        pcm = torch.zeros((len(pieces), longest * (RATE // FRAMES_PER_SECOND)), dtype=torch.float32)
        for row, piece in zip(pcm, pieces, strict=True):
            row[: len(piece.pcm)] = torch.from_numpy(piece.pcm)
        found: torch.Tensor = self._features(pcm.to(self._device))[..., :longest]
        for row, piece in zip(found, pieces, strict=True):
            if not piece.short:
                row[:, len(piece.pcm) * FRAMES_PER_SECOND // RATE :] = 0.0
        return found

    @torch.inference_mode()
    def decode(self, pieces: Sequence[_Piece]) -> list[Said]:
        """Hear up to ``max_batch`` pieces at once. A piece that runs out of tokens has one more than it may have."""
        count = len(pieces)
        size = fitting(self._sizes, count) if self._graphs else count
        rows = [*pieces, *[pieces[-1]] * (size - count)]
        encoded = self._net.encode(self.features(rows), [piece.frames for piece in rows])
        self._net.listen(encoded, self._sound)
        ends = torch.tensor([[piece.frames // 2] for piece in rows]).to(self._device)
        outside = torch.arange(self._net.positions, device=self._device) >= ends
        self._deaf[:size, 0, 0] = torch.zeros_like(outside, dtype=self._net.dtype).masked_fill(outside, float("-inf"))
        most = [piece.tokens + 1 if piece.short else piece.tokens for piece in rows]
        more = 2 if self._languages else 0  # tokens of the prompt beside the two that there always are
        self._most[:size] = torch.tensor(most).to(self._device) + more
        self._token.fill_(self._start)
        self._position.zero_()
        self._bias.copy_(self._forbidden[0])
        self._over.zero_()
        logits = self._run(size)
        no_speech = logits.softmax(-1)[:, self._no_speech]
        languages = self._begin(rows, logits)
        self._over[:size] = no_speech >= NO_SPEECH
        self._over[count:size] = True
        self._chance.zero_()
        self._token.fill_(self._untimed)
        look = LOOK_STEPS if self._graphs else 1
        for made in range(1, max(most) + 1):
            self._run(size)
            if made == 1:
                self._bias.copy_(self._forbidden[1])
            if made % look == 0 and bool(self._over[:size].all()):
                break
        return self._results(count, made, more, most, no_speech, languages)

    def _begin(self, rows: Sequence[_Piece], logits: torch.Tensor) -> list[str]:
        """Tell multilingual ears language and task of each row, after their first step; returns the languages."""
        if not self._languages:
            return ["en"] * len(rows)
        names = list(self._languages)
        likeliest = logits[:, list(self._languages.values())].argmax(-1).tolist()
        chosen = [
            piece.options.language or self._default or names[best] for piece, best in zip(rows, likeliest, strict=True)
        ]
        tasks = [self._tasks[piece.options.translate] for piece in rows]
        for column in ([self._languages[name] for name in chosen], tasks):
            self._token[: len(rows)] = torch.tensor(column).to(self._device)
            self._run(len(rows))
        return chosen

    def _results(
        self, count: int, made: int, more: int, most: list[int], no_speech: torch.Tensor, languages: list[str]
    ) -> list[Said]:
        said, chances, silences = (
            value[:count].tolist() for value in (self._said[:, 1 + more : made + 1 + more], self._chance, no_speech)
        )
        found = []
        for tokens, limit, chance, silence, language in zip(said, most, chances, silences, languages, strict=False):
            tokens = tokens[:limit]
            if self._end in tokens:
                tokens = tokens[: tokens.index(self._end)]
            found.append(Said(tokens, silence, chance / (len(tokens) + 1), language))
        return found

    def _run(self, size: int) -> torch.Tensor:
        """One step, by its graph if there is one; the logits are good until the next."""
        if size not in self._graphs:
            return self._step(size)
        graph, logits = self._graphs[size]
        graph.replay()
        return logits

    def _step(self, size: int) -> torch.Tensor:
        """Let the first ``size`` rows say their next token, those that are over the end of text. Returns logits."""
        token, over, position = self._token[:size], self._over[:size], self._position
        logits = self._net.step(token, position, self._text[:, :, :size], self._sound[:, :, :size], self._deaf[:size])
        allowed = logits + self._bias
        best, choice = allowed.max(-1)
        self._chance[:size] += (best - allowed.logsumexp(-1)).masked_fill(over, 0.0)
        token.copy_(choice.masked_fill(over, self._end))
        self._said[:size].index_copy_(1, position, token[:, None])
        over |= (token == self._end) | (position >= self._most[:size])
        position += 1
        return logits
