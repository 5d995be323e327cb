"""A stopwatch times what it was told to, and leaves no trace."""

from __future__ import annotations

import pytest

from voicechat.contract.stopwatch import Stopwatch


class Worker:
    def __init__(self) -> None:
        self.done = 0
        self.own = self.work

    def work(self, times: int = 1) -> int:
        self.done += times
        if times < 0:
            raise ValueError
        return self.done


def test_calls_are_counted_and_the_object_is_as_before() -> None:
    worker, watch = Worker(), Stopwatch()
    before = dict(vars(worker))
    watch.watch(worker, "work", "work")
    watch.watch(worker, "own", "own")
    watch.watch(worker, "nothing", "nothing")
    assert worker.work(2) == 2
    assert worker.own(times=3) == 5
    with pytest.raises(ValueError):
        worker.work(-1)
    found = watch.stop()
    assert found["calls"] == {"work": 2, "own": 1}
    assert set(found["share"]) == {"work", "own"}
    assert 0 <= sum(found["share"].values()) <= 1
    assert set(vars(worker)) == set(before)
    assert vars(worker)["own"] == before["own"]
    worker.work()
    assert found["calls"]["work"] == 2


def test_without_a_call_there_is_a_share_of_nothing() -> None:
    worker, watch = Worker(), Stopwatch()
    watch.watch(worker, "work", "work")
    assert watch.stop()["share"] == {"work": 0.0}
