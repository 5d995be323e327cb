"""The VoiceBox's process of Qwen3-Omni: chunks of frames of all replies to sound, several at once."""

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
from voicechat.models.qwen3_omni.code2wav import Code2Wav, Code2WavConfig
from voicechat.models.qwen_common.checkpoint import Checkpoint, load_part
from voicechat.models.qwen_common.config import read_config

_GOES_ON = b"+"


class Qwen3Decoder:
    """See :class:`voicechat.contract.family.Decoder`.

    What a reply's stream remembers stays on the device, one line for each slot; steps of the past that come with a
    chunk are not looked at again. Sound begins ``lag`` samples (23 ms) late, for so far the net looks ahead: these are
    zero, and the last ``lag`` samples of the net, which it makes of nothing, are not heard.
    """

    def __init__(self, net: Code2Wav, place: DecoderPlace) -> None:
        slots = place.slots
        if place.device.type == "cpu":
            torch.set_num_threads(place.threads)
        self._net, self._device = net.to(place.device).eval(), place.device
        self._memory = net.memory(slots + 1)
        self._nobody = slots
        self._sizes = batch_sizes(place.max_batch)
        self._graphs: dict[tuple[int, int], tuple[tuple[Tensor, Tensor], Captured[Tensor]]] = {}
        codes = torch.zeros(place.max_batch, max(place.lengths, default=1), net.config.num_quantizers, dtype=torch.long)
        lines = torch.full((place.max_batch,), slots)
        if place.graphs and place.device.type == "cuda":
            self._capture(place)
        else:
            for length in place.lengths:
                net.stream(codes[:1, :length].to(self._device), self._memory, lines[:1].to(self._device), fresh=True)

    def _capture(self, place: DecoderPlace) -> None:
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        groups = self._net.config.num_quantizers
        with torch.inference_mode():
            for length in sorted(set(place.lengths), reverse=True):
                for size in reversed(self._sizes):
                    codes = torch.zeros(size, length, groups, dtype=torch.long, device=self._device)
                    lines = torch.full((size,), self._nobody, dtype=torch.long, device=self._device)
                    step = partial(self._pcm, codes, lines)
                    self._graphs[size, length] = (codes, lines), capture(step, stream, pool)
        torch.cuda.synchronize(self._device)

    def _pcm(self, codes: Tensor, lines: Tensor) -> Tensor:
        sound = self._net.stream(codes, self._memory, lines, fresh=True)
        return (sound * 32767.0).round().to(torch.int16)

    def shape(self, chunk: Decode) -> Hashable:
        """See the interface."""
        return chunk.emit

    @torch.inference_mode()
    def decode(self, batch: Sequence[Decode]) -> list[Decoded]:
        """See the interface."""
        config, count, length = self._net.config, len(batch), batch[0].emit
        groups = config.num_quantizers
        given = np.frombuffer(b"".join(self._new(chunk) for chunk in batch), np.uint16)
        if given.max(initial=0) >= config.codebook_size:
            raise ValueError(f"there is no code {given.max()} in books of {config.codebook_size}")
        codes = torch.from_numpy(given.reshape(count, length, groups).astype(np.int64))
        lines = torch.tensor([chunk.slot for chunk in batch])
        fresh = [index for index, chunk in enumerate(batch) if not chunk.state]
        if fresh:
            self._memory.forget(lines[fresh].to(self._device))
        found = self._graphs.get((fitting(self._sizes, count), length))
        if found is None:
            made = self._pcm(codes.to(self._device), lines.to(self._device))
        else:
            (fixed_codes, fixed_lines), (graph, made) = found
            fixed_codes[:count].copy_(codes)
            fixed_lines[:count].copy_(lines)
            fixed_lines[count:] = self._nobody
            graph.replay()
        pcm = made[:count].cpu().numpy()
        for index in fresh:
            pcm[index, : config.lag] = 0
        return [Decoded(line, _GOES_ON) for line in pcm]

    def _new(self, chunk: Decode) -> bytes:
        size = 2 * self._net.config.num_quantizers
        return chunk.steps[chunk.left * size : (chunk.left + chunk.emit) * size]


def load_decoder(given: Mapping[str, Any], place: DecoderPlace) -> Qwen3Decoder:
    """The VoiceBox out of a model's folder: float32 on the CPU, the model's type on a GPU."""
    config = Code2WavConfig.of(read_config(Path(given["folder"]), "qwen3_omni_moe")["code2wav_config"])
    net = Code2Wav(config)
    if not given["random"]:
        load_part(net, Checkpoint(given["folder"]), "code2wav.", label="VoiceBox")
    if place.device.type == "cuda":
        net = net.to(getattr(torch, given["dtype"]))
    return Qwen3Decoder(net, place)
