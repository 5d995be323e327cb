"""Which sizes of batches are captured, which one a batch takes, and in which order a capture goes about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from voicechat.models.graphs import batch_sizes, capture, fitting


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (48, [1, 2, 4, 8, 16, 32, 48])],
)
def test_sizes_double(most: int, sizes: list[int]) -> None:
    assert batch_sizes(most) == sizes


def test_a_batch_takes_the_least_size_that_holds_it() -> None:
    assert [fitting([1, 2, 4, 6], count) for count in range(1, 8)] == [1, 2, 4, 4, 6, 6, 0]
    assert fitting([], 1) == 0


class Recorder:
    """Stands for ``torch.cuda``: writes down what is asked of it, and of streams, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def stream_named(self, name: str) -> Any:
        recorder = self

        class Stream:
            device = "the device"

            def wait_stream(self, other: Any) -> None:
                recorder.events.append(f"{name} waits for {other}")

            def __str__(self) -> str:
                return name

        return Stream()

    @contextmanager
    def within(self, what: str) -> Iterator[None]:
        self.events.append(what)
        yield
        self.events.append(f"end of {what}")


def test_the_order_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-ups lie between the streams' waiting for each other; what is reset is so before each run, not in the graph.

    What the captured run returned is kept, and the graph is of the pool and the stream that were given.
    """
    recorder = Recorder()
    side, current = recorder.stream_named("side"), recorder.stream_named("current")
    graph, returned = object(), iter(range(10))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current if device == side.device else None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: recorder.within(f"on {stream}"))

    def graph_of(given: object, pool: object, stream: object) -> Any:
        assert given is graph
        return recorder.within(f"capture on {stream}, {pool}")

    monkeypatch.setattr(torch.cuda, "graph", graph_of)

    def step() -> int:
        recorder.events.append("step")
        return next(returned)

    made = capture(step, side, "the pool", lambda: recorder.events.append("reset"))
    assert recorder.events == [
        "side waits for current",
        "on side",
        *["reset", "step"] * 3,
        "end of on side",
        "current waits for side",
        "reset",
        "capture on side, the pool",
        "step",
        "end of capture on side, the pool",
    ]
    assert made == (graph, 3)
