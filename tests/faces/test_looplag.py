"""The measure of the event loop's lag: what blocks is seen, what does not is not."""

from __future__ import annotations

import asyncio
import time

import pytest

from voicechat.faces import looplag
from voicechat.faces.looplag import LoopLag


class Clock:
    """Time that passes when the test says so, for :func:`asyncio.sleep` and ``perf_counter`` alike."""

    def __init__(self, lags: list[float]) -> None:
        self.now = 100.0
        self.lags = lags

    async def sleep(self, seconds: float) -> None:
        if not self.lags:
            raise asyncio.CancelledError
        self.now += seconds + self.lags.pop(0)

    def perf_counter(self) -> float:
        return self.now


async def measured(monkeypatch: pytest.MonkeyPatch, lags: list[float]) -> LoopLag:
    clock = Clock(list(lags))
    monkeypatch.setattr(looplag.asyncio, "sleep", clock.sleep)
    monkeypatch.setattr(looplag.time, "perf_counter", clock.perf_counter)
    lag = LoopLag()
    with pytest.raises(asyncio.CancelledError):
        await lag.measure()
    monkeypatch.undo()
    return lag


def test_nothing_measured_yet() -> None:
    assert LoopLag().percentile_ms(99) == 0.0


async def test_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    lag = await measured(monkeypatch, [index / 1000 for index in range(100)])
    assert lag.percentile_ms(0) == pytest.approx(0.0, abs=1e-6)
    assert lag.percentile_ms(50) == pytest.approx(50.0)
    assert lag.percentile_ms(99) == pytest.approx(99.0)
    assert lag.percentile_ms(100) == pytest.approx(99.0)


async def test_only_the_last_looks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lag = await measured(monkeypatch, [5.0] * 10 + [0.001] * looplag.KEPT)
    assert lag.percentile_ms(100) == pytest.approx(1.0)


async def test_waking_early_is_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    lag = await measured(monkeypatch, [-0.005] * 5)
    assert lag.percentile_ms(100) == 0.0


async def test_a_blocked_loop_is_seen() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.measure())
    await asyncio.sleep(2 * looplag.PERIOD)
    time.sleep(0.2)  # noqa: ASYNC251 - that is the fault to be found
    await asyncio.sleep(2 * looplag.PERIOD)
    task.cancel()
    assert lag.percentile_ms(100) >= 150
