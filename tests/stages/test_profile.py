"""What a stage's profile makes of times and of a GPU's trace; the engine itself is watched in ``bench load``'s runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from voicechat.stages import profile
from voicechat.stages.profile import ProfiledWorker, gpu_work, step_times


def event(category: str, begin: float, length: float, name: str = "x", size: int = 0) -> dict[str, Any]:
    return {"cat": category, "ts": begin, "dur": length, "name": name, "args": {"bytes": size}}


def test_rows_are_told_from_other_copies_by_their_size() -> None:
    events = [
        event("kernel", 0, 10),
        event("kernel", 5, 10),
        event("gpu_memcpy", 30, 5, "Memcpy DtoH (Device -> Pinned)", 256),
        event("gpu_memcpy", 40, 5, "Memcpy DtoH (Device -> Pinned)", 256),
        event("gpu_memcpy", 50, 5, "Memcpy DtoH (Device -> Pageable)", 3584),
        event("gpu_memcpy", 60, 5, "Memcpy HtoD (Pinned -> Device)", 1792),
        event("cpu_op", 0, 1000),
        {"ph": "M", "name": "process_name"},
    ]
    found = gpu_work(events, 100e-6, 1792)
    assert found["kernels"] == 2
    assert abs(found["busy"] - 0.35) < 1e-9
    assert found["to_host"] == {"copies": 3, "bytes": 4096, "by_size": {"256": 2, "3584": 1}}
    assert found["rows_to_host"] == 1


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_the_gpu_is_busy_while_anything_runs_on_it(spans: list[tuple[int, int]]) -> None:
    busy = {at for begin, length in spans for at in range(begin, begin + length)}
    events = [event("kernel", begin, length) for begin, length in spans]
    assert abs(gpu_work(events, 1e-6, 2)["busy"] - len(busy)) < 1e-6


def test_what_is_inside_another_part_does_not_count_twice() -> None:
    times = {
        "wall_s": 2.0,
        "calls": {"execute": 100},
        "share": {"schedule": 0.2, "held": 0.1, "execute": 0.5, "hook": 0.3},
    }
    found = step_times(times)
    assert found["steps"] == 100
    assert found["step_ms"] == 20.0
    assert abs(found["share"]["rest"] - 0.3) < 1e-9
    assert step_times({"wall_s": 1.0, "calls": {}, "share": {}})["step_ms"] is None


def test_a_worker_is_watched_from_begin_to_finish(monkeypatch: Any) -> None:
    class Engine:
        def execute_model(self) -> str:
            return self.hook()  # type: ignore[attr-defined, no-any-return]

    class Worker(ProfiledWorker, Engine):
        device = SimpleNamespace(type="cpu")
        _pool = SimpleNamespace(spec=SimpleNamespace(hidden_size=32))

        def hook(self) -> str:
            return "done"

        def profile_hooks(self) -> list[tuple[Any, str]]:
            return [(self, "hook")]

    class Scheduler:
        def schedule(self) -> None: ...

    scheduler, worker = Scheduler(), Worker()
    monkeypatch.setattr(profile, "_scheduler", None)
    profile.know_scheduler(scheduler)
    before = set(vars(worker))
    worker.profile_begin()
    for _ in range(3):
        scheduler.schedule()
        assert worker.execute_model() == "done"
    worker.profile_record()
    worker.execute_model()
    found = worker.profile_finish()
    assert found["steps"] == 3
    assert set(found["share"]) == {"schedule", "execute", "hook", "rest"}
    assert found["gpu"] is None
    assert set(vars(worker)) <= before | {"_profiler"}
    assert vars(scheduler) == {}
