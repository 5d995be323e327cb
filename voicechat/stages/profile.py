"""One engine's or decoder's work seen from inside: a phase of timing, then a short one of recording on the GPU.

The engine's core calls :class:`Profiler` through its worker, which is in the same process as the scheduler. Nothing of
it runs before it is asked for.

``wall_s``     seconds of the timing; ``steps`` that ran in them, ``step_ms`` of wall time each
``share``      of that time: ``schedule`` and in it ``held`` (asleep, because every request waits for rows), ``execute``
               (the model's step launched) and in it ``hook`` (rows in or out, conditioning), ``sample``, ``update`` (of
               the scheduler by the tokens), and ``rest``: messages, waiting for the GPU or for work
``gpu``        null, or of the recording: ``wall_s``, ``busy`` (share with a kernel or a copy of this process on it),
               ``kernels``, and ``to_host``: copies to the host, their ``bytes`` and ``by_size`` (bytes -> count);
               ``row_bytes`` and ``rows_to_host``: copies that are whole rows of hidden state, by their size
"""

from __future__ import annotations

import collections
import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from voicechat.contract.pool import Pool
from voicechat.contract.stopwatch import Stopwatch

NESTED = {"held": "schedule", "hook": "execute"}
"""Labels that are part of another."""
_COPIES = "gpu_memcpy"
_WORK = ("kernel", _COPIES, "gpu_memset")
_scheduler: Any = None


def row_bytes(pool: Pool) -> int:
    """Size of one row of hidden state, in bfloat16."""
    return 2 * pool.spec.hidden_size


def know_scheduler(scheduler: Any) -> None:
    """Remember the scheduler of this process's engine."""
    global _scheduler
    _scheduler = scheduler


class Profiler:
    """For one stage's worker. ``hooks`` are the (owner, method) of the stage's own code inside a step."""

    def __init__(self, worker: Any, hooks: Iterable[tuple[Any, str]], row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._recording: Any = None
        self._watch = watch = Stopwatch()
        if _scheduler is not None:
            watch.watch(_scheduler, "schedule", "schedule")
            watch.watch(_scheduler, "update_from_output", "update")
            watch.watch(_scheduler, "_sleep", "held")
        watch.watch(worker, "execute_model", "execute")
        watch.watch(worker, "sample_tokens", "sample")
        for owner, method in hooks:
            watch.watch(owner, method, "hook")
        self._times: dict[str, Any] = {}

    def record(self, on_gpu: bool) -> None:
        """End the timing; begin to record what runs on the GPU."""
        self._times = self._watch.stop()
        if on_gpu:
            import torch

            self._recording = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._recording.start()
            self._begun = time.perf_counter()

    def finish(self) -> dict[str, Any]:
        """End, and say what was seen."""
        gpu = None
        if self._recording is not None:
            import torch

            torch.cuda.synchronize()
            wall = time.perf_counter() - self._begun
            self._recording.stop()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json"
                self._recording.export_chrome_trace(str(path))
                events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
            gpu = gpu_work(events, wall, self._row_bytes)
        return {**step_times(self._times), "gpu": gpu}


def step_times(times: Mapping[str, Any]) -> dict[str, Any]:
    """The timing's part of the report."""
    share = dict(times["share"])
    share["rest"] = max(0.0, 1.0 - sum(part for label, part in share.items() if label not in NESTED))
    steps = times["calls"].get("execute", 0)
    return {
        "wall_s": times["wall_s"],
        "steps": steps,
        "step_ms": 1000 * times["wall_s"] / steps if steps else None,
        "share": share,
    }


def gpu_work(events: Iterable[Mapping[str, Any]], wall_s: float, row_bytes: int) -> dict[str, Any]:
    """The recording's part of the report, from a trace's events."""
    work = [event for event in events if event.get("cat") in _WORK]
    sizes = collections.Counter(
        int(event["args"]["bytes"]) for event in work if event["cat"] == _COPIES and "DtoH" in event["name"]
    )
    return {
        "wall_s": wall_s,
        "busy": _union((event["ts"], event["ts"] + event["dur"]) for event in work) / 1e6 / wall_s,
        "kernels": sum(event["cat"] == "kernel" for event in work),
        "to_host": {
            "copies": sizes.total(),
            "bytes": sum(size * count for size, count in sizes.items()),
            "by_size": {str(size): count for size, count in sorted(sizes.items())},
        },
        "row_bytes": row_bytes,
        "rows_to_host": sum(count for size, count in sizes.items() if row_bytes and size and size % row_bytes == 0),
    }


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Length of what the spans cover together."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


class ProfiledWorker:
    """What the engine's core is asked to do, by name. To be put in front of a worker class."""

    _profiler: Profiler | None = None
    _pool: Pool
    device: Any

    def profile_hooks(self) -> list[tuple[Any, str]]:
        """The stage's own code inside a step."""
        return []

    def profile_begin(self) -> None:
        """Begin to time."""
        self._profiler = Profiler(self, self.profile_hooks(), row_bytes(self._pool))

    def profile_record(self) -> None:
        """Begin to record."""
        assert self._profiler is not None
        self._profiler.record(self.device.type == "cuda")

    def profile_finish(self) -> dict[str, Any]:
        """End; the report."""
        assert self._profiler is not None
        found, self._profiler = self._profiler.finish(), None
        return found
