"""The door: a reply's sound comes out whole, at its tempo and marked, or not at all."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.stages.door import Door, FellBehind
from voicechat.stages.tempo import Tempo

PATIENCE = 5.0


class Turned:
    """Marks by turning the sign, and holds ``delay`` samples back."""

    def __init__(self, delay: int = 480) -> None:
        self._delay = delay
        self._held: Pcm = np.zeros(0, np.int16)
        self.finished = False

    def push(self, pcm: Pcm) -> Pcm:
        assert not self.finished
        self._held = np.concatenate([self._held, -pcm])
        cut = max(0, len(self._held) - self._delay)
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def finish(self) -> Pcm:
        self.finished = True
        return self._held


def noise(samples: int) -> Pcm:
    return np.random.default_rng(samples).integers(-9_000, 9_000, samples).astype(np.int16)


def through(door: Door, pcm: Pcm, sizes: list[int]) -> Pcm:
    parts, start = [], 0
    for size in sizes:
        parts.append(door.through(pcm[start : start + size], last=False))
        start += size
    return np.concatenate([*parts, door.through(pcm[start:], last=True)])


@given(
    sizes=st.lists(st.integers(0, 4_000), max_size=6),
    rest=st.integers(0, 4_000),
    speed=st.sampled_from([0.25, 0.8, 1.0, 1.5, 4.0]),
    marked=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_what_comes_out_does_not_depend_on_the_cuts(sizes: list[int], rest: int, speed: float, marked: bool) -> None:
    pcm = noise(sum(sizes) + rest)
    door = Door(Turned if marked else None, speed, PATIENCE)
    out = through(door, pcm, sizes)
    expected = pcm
    if speed != 1.0:
        tempo = Tempo(speed)
        expected = np.concatenate([tempo.push(pcm), tempo.flush()])
    np.testing.assert_array_equal(out, -expected if marked else expected)


def test_the_first_sound_waits_for_nothing_but_the_marker() -> None:
    assert len(Door(None, 1.0, PATIENCE).through(noise(2_880), last=False)) == 2_880
    assert len(Door(Turned, 1.0, PATIENCE).through(noise(2_880), last=False)) == 2_880 - 480


def test_a_marker_that_raises_lets_nothing_out() -> None:
    class Broken(Turned):
        def push(self, pcm: Pcm) -> Pcm:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Door(Broken, 1.0, PATIENCE).through(noise(2_880), last=False)


def test_a_marker_that_falls_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    class Slow(Turned):
        def push(self, pcm: Pcm) -> Pcm:
            nonlocal now
            now += 1.5 * len(pcm) / PCM_RATE
            return super().push(pcm)

    door = Door(Slow, 1.0, 2.0)
    for _ in range(4):  # each second of sound takes half a second too long
        door.through(noise(PCM_RATE), last=False)
    with pytest.raises(FellBehind):
        door.through(noise(PCM_RATE), last=False)
