"""What turns batches of chunks into sound, whatever the net: plainly, or by captured CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.family import DecoderPlace
from voicechat.contract.messages import Decode
from voicechat.models.graphs import Captured, batch_sizes, capture, fitting


class Net(Protocol):
    """What a family says of its net. All tensors of a batch have it as their first axis."""

    def pack(self, batch: Sequence[Decode]) -> tuple[Tensor, ...]:
        """Chunks of one length as tensors on the CPU. Raises ValueError where they are none."""

    def run(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Inputs on the net's device to int16 sound ``[batch, samples]``, context included, and states ``[batch, …]``.

        Can be captured in a CUDA graph.
        """

    def silence(self, steps: int) -> Decode:
        """A chunk of this length, to warm up with."""


class PlainBatches:
    """Runs the net as it is, on the CPU."""

    def __init__(self, net: Net, place: DecoderPlace) -> None:
        torch.set_num_threads(place.threads)
        self._net = net
        for length in place.lengths:
            for size in {1, place.max_batch}:
                self.run([net.silence(length)] * size)

    @torch.inference_mode()
    def run(self, batch: Sequence[Decode]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.generic]]:
        """Chunks of one length to their whole sound and their states."""
        pcm, states = self._net.run(self._net.pack(batch))
        return pcm.numpy(), states.numpy()


class GraphBatches:
    """Runs captured graphs for the lengths that replies are made of, and the plain net for the odd ends.

    Graphs are of ``place.lengths``, each for batches of 1, 2, 4, … ``place.max_batch``; a smaller batch is filled up.
    """

    def __init__(self, net: Net, place: DecoderPlace) -> None:
        torch.set_num_threads(place.threads)
        torch.backends.cudnn.allow_tf32 = False
        device = place.device
        self._device = device
        self._net = net
        self._sizes = batch_sizes(place.max_batch)
        # Of each size and length: what goes in, and its graph, out of which come PCM and states.
        self._graphs: dict[tuple[int, int], tuple[tuple[Tensor, ...], Captured[tuple[Tensor, Tensor]]]] = {}
        with torch.inference_mode():
            # All on one stream: memory that one graph has done with serves the next only there.
            pool, stream = (torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)) if place.graphs else (None, None)
            for length in sorted(place.lengths, reverse=True):
                for size in reversed(self._sizes):
                    inputs = tuple(part.to(device) for part in net.pack([net.silence(length)] * size))
                    step = partial(net.run, inputs)
                    if stream is not None:
                        self._graphs[size, len(net.silence(length).steps)] = inputs, capture(step, stream, pool)
                    else:
                        step()
            torch.cuda.synchronize(device)

    def run(self, batch: Sequence[Decode]) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.generic]]:
        """As :meth:`PlainBatches.run`. Waits for the device, and for nothing else on it."""
        count = len(batch)
        found = self._graphs.get((fitting(self._sizes, count), len(batch[0].steps)))
        with torch.inference_mode():
            given = tuple(part.pin_memory() for part in self._net.pack(batch))
            if found is None:
                made = self._net.run(tuple(part.to(self._device, non_blocking=True) for part in given))
            else:
                inputs, (graph, (all_pcm, all_states)) = found
                for fixed, part in zip(inputs, given, strict=True):
                    fixed[:count].copy_(part, non_blocking=True)
                graph.replay()
                made = all_pcm[:count], all_states[:count]
            pcm, states = (torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in made)
            pcm.copy_(made[0], non_blocking=True)
            states.copy_(made[1], non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        return pcm.numpy(), states.numpy()


Batches = PlainBatches | GraphBatches


def make_batches(net: Net, place: DecoderPlace) -> Batches:
    """The way that suits a place, warm."""
    return GraphBatches(net, place) if place.device.type == "cuda" else PlainBatches(net, place)
