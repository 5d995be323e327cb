"""The resampler keeps levels, lengths, time and pitch, whatever the pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.media.resample import Resampler, resample, to_float, to_pcm

RATES = [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 96_000]


def sine(hertz: float, rate: int, samples: int, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hertz * np.arange(samples) / rate)).astype(np.float32)


@pytest.mark.parametrize("rate_in", RATES)
@pytest.mark.parametrize("rate_out", [16_000, 24_000, 48_000])
def test_a_tone_stays_the_same_tone(rate_in: int, rate_out: int) -> None:
    out = resample(sine(440.0, rate_in, rate_in), rate_in, rate_out)
    expected = sine(440.0, rate_out, out.size)
    middle = slice(rate_out // 20, -rate_out // 20)
    assert np.abs(out - expected)[middle].max() < 1e-4  # level, phase and pitch at once


def test_what_the_lower_rate_cannot_hold_is_removed() -> None:
    out = resample(sine(11_000.0, 48_000, 48_000), 48_000, 16_000)
    assert np.sqrt(np.mean(out[500:-500] ** 2)) < 1e-3


@settings(max_examples=60, deadline=None)
@given(
    rate_in=st.sampled_from(RATES),
    rate_out=st.sampled_from(RATES),
    cuts=st.lists(st.integers(0, 3_000), min_size=1, max_size=12),
    level=st.floats(0.01, 1.0),
)
def test_pieces_do_not_matter_and_lengths_are_exact(rate_in: int, rate_out: int, cuts: list[int], level: float) -> None:
    whole = sine(300.0, rate_in, sum(cuts), level)
    resampler = Resampler(rate_in, rate_out)
    starts = np.cumsum([0, *cuts])
    pieces = [resampler.push(whole[a : a + n]) for a, n in zip(starts, cuts, strict=False)]
    pieces.append(resampler.flush())
    joined = np.concatenate(pieces)
    assert joined.dtype == np.float32
    assert joined.size == math.ceil(whole.size * rate_out / rate_in)
    np.testing.assert_array_equal(joined, resample(whole, rate_in, rate_out))


def test_output_lags_by_the_filter_only() -> None:
    resampler = Resampler(48_000, 16_000)
    assert resampler.push(sine(440.0, 48_000, 4_800)).size >= 1_600 - 32


def test_nothing_in_nothing_out() -> None:
    resampler = Resampler(48_000, 16_000)
    assert resampler.push(np.zeros(0, np.float32)).size == 0
    assert resampler.flush().size == 0


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        Resampler(0, 16_000)
    resampler = Resampler(48_000, 16_000)
    with pytest.raises(ValueError, match="float32"):
        resampler.push(np.zeros(4, np.int16))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="float32"):
        resampler.push(np.zeros((2, 4), np.float32))
    resampler.flush()
    with pytest.raises(ValueError, match="flushed"):
        resampler.push(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="flushed"):
        resampler.flush()


def test_every_int16_survives_the_way_to_float_and_back() -> None:
    every = np.arange(-32768, 32768).astype(np.int16)
    np.testing.assert_array_equal(to_pcm(to_float(every)), every)


def test_what_is_too_loud_is_clipped_not_wrapped() -> None:
    assert to_pcm(np.array([1.5, 1.0, -1.0, -1.5], np.float32)).tolist() == [32767, 32767, -32768, -32768]
