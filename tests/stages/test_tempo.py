"""Faster and slower at the same pitch, the same sound however it is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.contract.sound import MAX_SPEED, MIN_SPEED
from voicechat.stages.tempo import Tempo

RATE = 24_000


def buzz(seconds: float, hertz: float = 140.0) -> np.ndarray:
    """A voice-like sound: harmonics with a syllable's rise and fall four times a second."""
    t = np.arange(int(seconds * RATE)) / RATE
    wave = sum(np.sin(2 * np.pi * hertz * k * t) / k for k in range(1, 12))
    return np.rint(6_000 * wave * (0.55 + 0.45 * np.sin(2 * np.pi * 4 * t))).astype(np.int16)


def stretched(pcm: np.ndarray, tempo: float, sizes: list[int] | None = None) -> np.ndarray:
    filter_ = Tempo(tempo)
    parts, start = [], 0
    for size in sizes or [len(pcm)]:
        parts.append(filter_.push(pcm[start : start + size]))
        start += size
    parts += [filter_.push(pcm[start:]), filter_.flush()]
    return np.concatenate(parts)


def period(pcm: np.ndarray) -> float:
    """Samples of the strongest period between 60 and 400 Hz."""
    x = pcm[: 1 << 15].astype(np.float64)
    spectrum = np.abs(np.fft.rfft(x, 1 << 17)) ** 2
    near = np.fft.irfft(spectrum)[: RATE // 60]
    return float(RATE // 400 + np.argmax(near[RATE // 400 :]))


@pytest.mark.parametrize("tempo", [0.25, 0.3, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.0])
def test_length_and_pitch(tempo: float) -> None:
    pcm = buzz(6.0)
    out = stretched(pcm, tempo)
    assert out.dtype == np.int16
    assert len(out) == round(len(pcm) / tempo)
    assert period(out) == pytest.approx(period(pcm), rel=0.02)
    assert np.std(out) == pytest.approx(np.std(pcm), rel=0.1)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 9_000), min_size=1, max_size=12), tempo=st.sampled_from([0.25, 0.7, 1.8, 4.0]))
def test_cuts_change_nothing(sizes: list[int], tempo: float) -> None:
    pcm = buzz(sum(sizes) / RATE + 1.0)
    np.testing.assert_array_equal(stretched(pcm, tempo, sizes), stretched(pcm, tempo))


@settings(max_examples=100, deadline=None)
@given(samples=st.integers(1, 12_000), cut=st.integers(0, 12_000), tempo=st.floats(MIN_SPEED, MAX_SPEED))
def test_every_length_is_exact(samples: int, cut: int, tempo: float) -> None:
    assert len(stretched(buzz(0.5)[:samples], tempo, [cut])) == round(samples / tempo)


def test_it_comes_as_it_goes_in() -> None:
    filter_ = Tempo(0.5)
    early = sum(len(filter_.push(buzz(0.2))) for _ in range(10))
    assert early > 0.8 * 4.0 * RATE
    assert len(filter_.flush()) < 0.2 * 4.0 * RATE


def test_the_same_tempo_changes_nothing() -> None:
    pcm = buzz(2.0)
    np.testing.assert_array_equal(stretched(pcm, 1.0), pcm)


def test_no_clicks() -> None:
    """No step between two samples is larger than the sound's own."""
    pcm = buzz(3.0)
    for tempo in (0.4, 0.8, 1.3, 2.5):
        assert np.abs(np.diff(stretched(pcm, tempo).astype(int))).max() < 1.3 * np.abs(np.diff(pcm.astype(int))).max()


def test_nothing_in_nothing_out() -> None:
    filter_ = Tempo(2.0)
    assert filter_.push(np.zeros(0, np.int16)).size == 0
    assert filter_.flush().size == 0
    assert filter_.flush().size == 0
    with pytest.raises(ValueError, match="flushed"):
        filter_.push(np.zeros(1, np.int16))


@pytest.mark.parametrize("tempo", [0.0, MIN_SPEED - 0.01, MAX_SPEED + 0.01, float("nan")])
def test_tempos_out_of_range(tempo: float) -> None:
    with pytest.raises(ValueError, match="tempo"):
        Tempo(tempo)
