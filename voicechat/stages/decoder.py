"""What turns a batch of chunks of one length into sound: plainly on the CPU, by captured CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.messages import Decode
from voicechat.models.embedded.alphabet import NONE_SYMBOL, SYMBOL_WINDOW
from voicechat.models.embedded.voicebox import TOKEN_SAMPLES, load_voicebox
from voicechat.models.graphs import Captured, batch_sizes, capture, fitting
from voicechat.stages.placement import bounded_gpu

Pcm = npt.NDArray[np.int16]


class Decoder(Protocol):
    """Turns chunks of codes into sound."""

    def decode(self, batch: Sequence[Decode]) -> tuple[Pcm, list[float]]:
        """Chunks that are all of one length to int16 sound ``[batch, steps * 960]``, their context included.

        Also the phase of each one's pulse train, in cycles, at the end of the part that it emits. Raises ValueError
        where codes and symbols do not match.
        """


class Chunks(NamedTuple):
    """A batch of chunks of one length, as the net's ``stream`` takes it: long, but for the float64 ``phase``."""

    codes: Tensor
    """[batch, steps]."""
    symbols: Tensor
    """[batch, steps, 9]."""
    voices: Tensor
    """[batch], as all below."""
    first: Tensor
    """Step of the reply that the chunk's first code is."""
    left: Tensor
    """Steps of the chunk before the part that is emitted."""
    end: Tensor
    """Step of the chunk at which that part ends."""
    phase: Tensor
    """Of the pulse train where that part begins, in cycles."""

    @staticmethod
    def of(batch: Sequence[Decode]) -> Chunks:
        """The messages' chunks, on the CPU. Raises ValueError where codes and symbols do not match."""
        steps = len(batch[0].codes)
        symbols = np.frombuffer(b"".join(message.symbols for message in batch), np.uint8)
        return Chunks(
            torch.tensor([message.codes for message in batch]),
            torch.from_numpy(symbols.reshape(len(batch), steps, SYMBOL_WINDOW).astype(np.int64)),
            torch.tensor([message.voice for message in batch]),
            torch.tensor([message.start // TOKEN_SAMPLES - message.left for message in batch]),
            torch.tensor([message.left for message in batch]),
            torch.tensor([message.left + message.emit for message in batch]),
            torch.tensor([message.phase for message in batch], dtype=torch.float64),
        )

    def to(self, device: torch.device) -> Chunks:
        """The same on a device; pinned memory is not waited for."""
        return Chunks(*(part.to(device, non_blocking=True) for part in self))


def _silence(steps: int, batch: int) -> list[Decode]:
    """A batch to warm up with."""
    return [Decode(0, 0, (0,) * steps, bytes([NONE_SYMBOL]) * SYMBOL_WINDOW * steps, 0, steps, 0)] * batch


class PlainDecoder:
    """Runs the net as it is, on the CPU."""

    def __init__(self, net: Any) -> None:
        self._net = net

    def decode(self, batch: Sequence[Decode]) -> tuple[Pcm, list[float]]:
        """See :class:`Decoder`."""
        with torch.inference_mode():
            sound, phase = self._net.stream(*Chunks.of(batch))
        return np.rint(np.clip(sound.numpy(), -1.0, 1.0) * 32767.0).astype(np.int16), phase.tolist()


def _to_pcm(net: Any, chunks: Chunks) -> tuple[Tensor, Tensor]:
    sound, phase = net.stream(*chunks)
    return (sound * 32767.0).round().to(torch.int16), phase


class GraphDecoder:
    """Runs captured graphs for the lengths that replies are made of, and the plain net for the odd ends.

    ``steps`` are the lengths to capture, each for batches of 1, 2, 4, … ``max_batch``; a smaller batch is filled up.
    """

    def __init__(
        self, net: Any, steps: Iterable[int], max_batch: int, device: torch.device, *, graphs: bool = True
    ) -> None:
        torch.backends.cudnn.allow_tf32 = False
        self._device = device
        self._net = net.to(device)
        self._sizes = batch_sizes(max_batch)
        # Of each size and length: what goes in, and its graph, out of which come PCM and phase.
        self._graphs: dict[tuple[int, int], tuple[Chunks, Captured[tuple[Tensor, Tensor]]]] = {}
        with torch.inference_mode():
            # All on one stream: memory that one graph has done with serves the next only there.
            pool, stream = (torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)) if graphs else (None, None)
            for length in sorted(steps, reverse=True):
                for size in reversed(self._sizes):
                    chunks = Chunks.of(_silence(length, size)).to(device)
                    step = partial(_to_pcm, self._net, chunks)
                    if stream is not None:
                        self._graphs[size, length] = chunks, capture(step, stream, pool)
                    else:
                        step()
            torch.cuda.synchronize(device)

    def decode(self, batch: Sequence[Decode]) -> tuple[Pcm, list[float]]:
        """See :class:`Decoder`. Waits for the device, and for nothing else on it."""
        count, length = len(batch), len(batch[0].codes)
        found = self._graphs.get((fitting(self._sizes, count), length))
        with torch.inference_mode():
            given = Chunks(*(part.pin_memory() for part in Chunks.of(batch)))
            if found is None:
                made = _to_pcm(self._net, given.to(self._device))
            else:
                chunks, (graph, (all_pcm, all_phases)) = found
                for fixed, part in zip(chunks, given, strict=True):
                    fixed[:count].copy_(part, non_blocking=True)
                graph.replay()
                made = all_pcm[:count], all_phases[:count]
            pcm, phase = (torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in made)
            pcm.copy_(made[0], non_blocking=True)
            phase.copy_(made[1], non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        return pcm.numpy(), phase.tolist()


def make_decoder(weights_dir: str, *, place: Any, threads: int, max_batch: int, steps: Sequence[int]) -> Decoder:
    """Load the VoiceBox and warm every shape up. ``place`` is a :class:`~voicechat.stages.placement.Placement`."""
    torch.set_num_threads(threads)
    net = load_voicebox(weights_dir)
    if place.on_gpu:
        return GraphDecoder(net, steps, max_batch, bounded_gpu(place), graphs=place.graphs)
    plain = PlainDecoder(net)
    for length in steps:
        for batch in {1, max_batch}:
            plain.decode(_silence(length, batch))
    return plain
