"""What turns a batch of chunks of one length into sound: plainly on the CPU, by captured CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Codes = Sequence[Sequence[int]]
Pcm = npt.NDArray[np.int16]

_WARM_UPS = 3


class Decoder(Protocol):
    """Turns codes ``[batch, steps]`` and the numbers of their voices into int16 sound ``[batch, steps * 960]``."""

    def decode(self, codes: Codes, voices: Sequence[int]) -> Pcm:
        """The sound of chunks that are all of one length."""


class PlainDecoder:
    """Runs the net as it is, on the CPU."""

    def __init__(self, net: Any) -> None:
        self._net = net

    def decode(self, codes: Codes, voices: Sequence[int]) -> Pcm:
        """See :class:`Decoder`."""
        with torch.inference_mode():
            sound = self._net.decode(torch.tensor(codes), torch.tensor(voices)).numpy()
        return np.rint(np.clip(sound, -1.0, 1.0) * 32767.0).astype(np.int16)


class _Graph:
    """One captured size: ``codes`` and ``voices`` go in, ``pcm`` comes out, all always the same memory."""

    def __init__(self, net: Any, batch: int, steps: int, device: torch.device, pool: Any) -> None:
        self.codes = torch.zeros((batch, steps), dtype=torch.int64, device=device)
        self.voices = torch.zeros(batch, dtype=torch.int64, device=device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                _to_pcm(net, self.codes, self.voices)
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self.pcm = _to_pcm(net, self.codes, self.voices)


def _to_pcm(net: Any, codes: torch.Tensor, voices: torch.Tensor) -> torch.Tensor:
    return (net.decode(codes, voices) * 32767.0).round().to(torch.int16)


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
        self._sizes = [size for size in (1 << power for power in range(20)) if size < max_batch] + [max_batch]
        self._graphs: dict[tuple[int, int], _Graph] = {}
        with torch.inference_mode():
            pool = torch.cuda.graph_pool_handle() if graphs else None
            for length in sorted(steps, reverse=True):
                for size in reversed(self._sizes):
                    if graphs:
                        self._graphs[size, length] = _Graph(self._net, size, length, device, pool)
                    else:
                        zeros = torch.zeros((size, length), dtype=torch.int64, device=device)
                        _to_pcm(self._net, zeros, zeros[:, 0])
            torch.cuda.synchronize(device)

    def decode(self, codes: Codes, voices: Sequence[int]) -> Pcm:
        """See :class:`Decoder`. Waits for the device, and for nothing else on it."""
        count, length = len(codes), len(codes[0])
        size = next((size for size in self._sizes if size >= count), 0)
        graph = self._graphs.get((size, length))
        with torch.inference_mode():
            given, said = torch.tensor(codes).pin_memory(), torch.tensor(voices).pin_memory()
            if graph is None:
                device = self._device
                pcm = _to_pcm(self._net, given.to(device, non_blocking=True), said.to(device, non_blocking=True))
            else:
                graph.codes[:count].copy_(given, non_blocking=True)
                graph.voices[:count].copy_(said, non_blocking=True)
                graph.graph.replay()
                pcm = graph.pcm[:count]
            out = torch.empty(pcm.shape, dtype=torch.int16, pin_memory=True)
            out.copy_(pcm, non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        sound: Pcm = out.numpy()
        return sound


def make_decoder(weights_dir: str, *, place: Any, threads: int, max_batch: int, steps: Sequence[int]) -> Decoder:
    """Load the VoiceBox and warm every shape up. ``place`` is a :class:`~voicechat.stages.placement.Placement`."""
    from voicechat.models.embedded.voicebox import load_voicebox

    torch.set_num_threads(threads)
    net = load_voicebox(weights_dir)
    if place.on_gpu:
        device = torch.device("cuda", 0)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (place.memory_mb << 20) / total), device)
        return GraphDecoder(net, steps, max_batch, device, graphs=place.graphs)
    plain = PlainDecoder(net)
    for length in steps:
        for batch in {1, max_batch}:
            plain.decode([(0,) * length] * batch, [0] * batch)
    return plain
