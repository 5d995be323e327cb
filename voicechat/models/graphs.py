"""CUDA graphs of a step that takes batches: a few sizes are captured, and a smaller batch is filled up to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch

T = TypeVar("T")

_WARM_UPS = 3


class Captured(NamedTuple, Generic[T]):
    """A graph, and what its step returned while it was captured: memory that each replay writes anew."""

    graph: torch.cuda.CUDAGraph
    made: T


def batch_sizes(most: int) -> list[int]:
    """Sizes to capture, ascending: 1, 2, 4, … below ``most``, then ``most``, which is at least 1."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def fitting(sizes: Sequence[int], count: int) -> int:
    """The least of ascending sizes that a batch of ``count`` fits into; 0 if there is none."""
    return next((size for size in sizes if size >= count), 0)


def capture(
    step: Callable[[], T], stream: torch.cuda.Stream, pool: Any, reset: Callable[[], object] = lambda: None
) -> Captured[T]:
    """Warm ``step`` up on ``stream`` and capture it there; what it reads and writes must stay where it is.

    ``pool`` (``torch.cuda.graph_pool_handle()``) is the memory that graphs share, of which none runs beside another.
    ``reset`` comes before each run and before the capture, and is no part of the graph.
    """
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            reset()
            step()
    torch.cuda.current_stream(stream.device).wait_stream(stream)
    reset()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        made = step()
    return Captured(graph, made)
