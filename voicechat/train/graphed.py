"""A training step as one CUDA graph: some eager calls first, then capture, then replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

_WARM_UP = 6


def make_optimizer(parameters: Iterable[nn.Parameter], rate: float, device: torch.device) -> torch.optim.AdamW:
    """AdamW for the convolutional nets; on a GPU its learning rate is a tensor, as a captured step needs it."""
    if device.type != "cuda":
        return torch.optim.AdamW(parameters, rate, betas=(0.8, 0.95), weight_decay=0.01)
    tensor = torch.tensor(rate, device=device)
    return torch.optim.AdamW(parameters, tensor, betas=(0.8, 0.95), weight_decay=0.01, fused=True, capturable=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class GraphedStep:
    """Calls ``step`` (which reads and writes fixed tensors and takes its optimisers' steps), captured when on a GPU."""

    def __init__(self, step: Callable[[], Tensor], optimizers: list[torch.optim.Optimizer], capture: bool) -> None:
        self._step = step
        self._optimizers = optimizers
        self._capture = capture
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._out: Tensor | None = None

    def __call__(self) -> Tensor:
        """Run once; returns the step's measures (the same tensor each time)."""
        self._calls += 1
        if self._graph is not None and self._out is not None:
            self._graph.replay()
            return self._out
        if not self._capture:
            self._clear()
            return self._step()
        if self._calls <= _WARM_UP:
            self._clear()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                out = self._step()
            torch.cuda.current_stream().wait_stream(stream)
            return out
        self._clear()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = self._step()
        self._graph.replay()
        return self._out

    def _clear(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
