"""The VoiceBox's process of Qwen2.5-Omni: chunks of codes of all replies to sound, several at once.

A chunk is made in a window of whole blocks: what came before it (two blocks suffice), itself, and the block behind it.
The flow runs over the window anew; of what came before, the vocoder then reads the frames that were heard. The block
behind is made without what follows it, so at a chunk's end a few milliseconds of it are kept and faded into the next
chunk. A reply in one chunk is, sample for sample, the published model's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voicechat.contract.family import Decoded, DecoderPlace
from voicechat.contract.messages import Decode
from voicechat.models.graphs import Captured, batch_sizes, capture, fitting
from voicechat.models.qwen2_5_omni.speakers import FILE
from voicechat.models.qwen2_5_omni.token2wav import Token2Wav, Voice, noise_table
from voicechat.models.qwen_common.checkpoint import Checkpoint, CheckpointError, load_part
from voicechat.models.qwen_common.config import read_config

_GOES_ON = b"+"
_FADE = 240
"""Samples (10 ms) over which a chunk takes over from what the one before knew of it."""
_NOISE_FRAMES = 1 << 13
"""Then the noise begins again: after 80 seconds."""


class Qwen25Decoder:
    """See :class:`voicechat.contract.family.Decoder`. What a reply has to remember stays on the device, by slot."""

    def __init__(self, net: Token2Wav, voices: Sequence[Voice], place: DecoderPlace) -> None:
        if place.device.type == "cpu":
            torch.set_num_threads(place.threads)
        self._net, self._voices, self._device = net, voices, place.device
        self._noise = noise_table(_NOISE_FRAMES, net.mels).to(place.device)
        self._most = net.shape.repeats * max(place.lengths, default=1)
        self._frames: dict[int, Tensor] = {}
        """By slot, the last frames that were heard, ``[frames, mels]``."""
        self._tails: dict[int, Tensor] = {}
        """By slot, what the last chunk knew of the next one's sound, ``[samples]``."""
        self._sizes = batch_sizes(place.max_batch)
        self._flows: dict[tuple[int, int], tuple[tuple[Tensor, ...], Captured[Tensor]]] = {}
        self._vocoders: dict[tuple[int, int], tuple[Tensor, Captured[Tensor]]] = {}
        with torch.inference_mode():
            if place.graphs and place.device.type == "cuda":
                self._capture(sorted(set(place.lengths), reverse=True))
            else:
                for length in place.lengths:
                    codes = torch.zeros(1, length, dtype=torch.long, device=place.device)
                    self._made(codes, self._noise[None, : length * net.shape.repeats], [voices[0]])

    def _capture(self, lengths: Sequence[int]) -> None:
        """Graphs of a step of the solver, which runs as often as there are steps, and of the vocoder."""
        net, device = self._net, self._device
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        for length in lengths:
            for size in reversed(self._sizes):
                codes = torch.zeros(size, length, dtype=torch.long, device=device)
                conditions = net.conditions(codes, [self._voices[0]] * size)
                state = torch.zeros(size, length * net.shape.repeats, net.mels, device=device)
                fixed = state, conditions, torch.zeros((), device=device), torch.ones((), device=device)
                self._flows[size, length] = fixed, capture(partial(net.advance, *fixed), stream, pool)
                frames = torch.zeros_like(state)
                self._vocoders[size, length] = frames, capture(partial(net.sound, frames), stream, pool)
        torch.cuda.synchronize(device)

    def _made(self, codes: Tensor, noise: Tensor, voices: Sequence[Voice]) -> Tensor:
        """Spectrograms [B, frames, mels] of windows."""
        net, (count, length) = self._net, codes.shape
        size = fitting(self._sizes, count)
        found = self._flows.get((size, length))
        conditions = net.conditions(codes, voices)
        if found is None:
            return net.spectrogram(noise, conditions)
        (state, fixed, start, end), (graph, made) = found
        state[:count].copy_(noise)
        fixed[:count].copy_(conditions[:count])
        fixed[size : size + count].copy_(conditions[count:])
        for begin, until in zip(net.times[:-1], net.times[1:], strict=True):
            start.copy_(begin)
            end.copy_(until)
            graph.replay()
            state.copy_(made)
        return state[:count].clone()

    def _heard(self, frames: Tensor, length: int) -> Tensor:
        count = len(frames)
        found = self._vocoders.get((fitting(self._sizes, count), length))
        if found is None:
            return self._net.sound(frames)
        fixed, (graph, made) = found
        fixed[:count].copy_(frames)
        graph.replay()
        return made[:count]

    def _window(self, chunk: Decode) -> tuple[int, int]:
        """The window's first step in the reply, and how many of the chunk's steps lie before it: blocks are whole."""
        shape = self._net.shape
        first = chunk.start // shape.step_samples - chunk.left
        skipped = -first % shape.block
        return (first + skipped, skipped) if skipped <= chunk.left else (first, 0)

    def shape(self, chunk: Decode) -> Hashable:
        """See the interface."""
        return len(chunk.steps) // 2 - self._window(chunk)[1]

    @torch.inference_mode()
    def decode(self, batch: Sequence[Decode]) -> list[Decoded]:
        """See the interface."""
        shape, rows, starts = self._net.shape, [], []
        for chunk in batch:
            first, skipped = self._window(chunk)
            rows.append(np.frombuffer(chunk.steps, np.uint16)[skipped:])
            starts.append((first, chunk.left - skipped))
            if not chunk.state:
                self._frames.pop(chunk.slot, None)
                self._tails.pop(chunk.slot, None)
        given = np.stack(rows)
        if given.max(initial=0) >= shape.codes:
            raise ValueError(f"there is no code {given.max()} among {shape.codes}")
        codes = torch.from_numpy(given.astype(np.int64)).to(self._device)
        length = codes.shape[1]
        places = torch.arange(length * shape.repeats, device=self._device)
        noise = torch.stack([self._noise[(first * shape.repeats + places) % _NOISE_FRAMES] for first, _ in starts])
        frames = self._made(codes, noise, [self._voices[chunk.voice] for chunk in batch])
        for index, (chunk, (_, left)) in enumerate(zip(batch, starts, strict=True)):
            self._remember(frames[index], chunk, left)
        sound = self._heard(frames, length)
        ready = [self._cut(sound[index], chunk, starts[index][1]) for index, chunk in enumerate(batch)]
        lengths = [len(part) for part in ready]
        pcm = (torch.cat(ready) * 32767.0).round().to(torch.int16).cpu().numpy()
        return [Decoded(part, _GOES_ON) for part in np.split(pcm, np.cumsum(lengths)[:-1])]

    def _remember(self, frames: Tensor, chunk: Decode, left: int) -> None:
        """Put the frames that were heard in the place of those that were made again, and keep the newest."""
        begin, end = (left * self._net.shape.repeats, (left + chunk.emit) * self._net.shape.repeats)
        heard = self._frames.get(chunk.slot)
        if heard is not None and begin:
            heard = heard[-begin:]
            frames[begin - len(heard) : begin] = heard
        self._frames[chunk.slot] = frames[:end][-self._most :].clone()

    def _cut(self, sound: Tensor, chunk: Decode, left: int) -> Tensor:
        """What a chunk emits, with the sound kept of the chunk before faded out over its beginning."""
        size = self._net.shape.step_samples
        begin, end = left * size, (left + chunk.emit) * size
        emitted, tail = sound[begin:end].clone(), self._tails.pop(chunk.slot, None)
        if tail is not None:
            count = min(len(tail), len(emitted))
            rise = (torch.arange(count, device=sound.device) + 0.5) / count
            emitted[:count] = tail[:count] * (1 - rise) + emitted[:count] * rise
        if end < len(sound):
            self._tails[chunk.slot] = sound[end : end + _FADE].clone()
        return emitted


def load_decoder(given: Mapping[str, Any], place: DecoderPlace) -> Qwen25Decoder:
    """The VoiceBox out of a model's folder, in float32, as it was trained."""
    folder = Path(given["folder"])
    net = Token2Wav(read_config(folder, "qwen2_5_omni")["token2wav_config"])
    if not given["random"]:
        load_part(net.net, Checkpoint(folder), "token2wav.", label="VoiceBox")
    net = net.to(place.device).eval()
    return Qwen25Decoder(net, load_voices(net, folder / FILE, given["voices"]), place)


def load_voices(net: Token2Wav, path: Path, names: Sequence[str]) -> list[Voice]:
    """The voices of these names out of the published table. Raises :class:`CheckpointError` if one is missing."""
    table = {name.lower(): facts for name, facts in torch.load(path, weights_only=True, map_location="cpu").items()}
    if missing := [name for name in names if name not in table]:
        raise CheckpointError(f"{path} has no voice {missing[0]}")
    device = net.times.device
    with torch.inference_mode():
        return [
            net.voice(table[name]["cond"].float().view(1, -1).to(device), table[name]["ref_mel"].float().to(device))
            for name in names
        ]
