"""The embedder: as much out as in, the same however it was cut, silence stays silence, no fault at full scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.watermark.embed import DELAY_SAMPLES, Embedder, _weights
from voicechat.watermark.keys import Key
from voicechat.watermark.pattern import ROWS, Pattern

KEY = Key(bytes(range(32)))


def _marked(pcm: Pcm) -> Pcm:
    embedder = Embedder(KEY, 0xACE1)
    return np.concatenate([embedder.push(pcm), embedder.finish()])


def _hum(seconds: float, level: float = 0.2) -> Pcm:
    """Something like a voice: harmonics of a moving pitch, breathing noise."""
    time = np.arange(int(seconds * PCM_RATE)) / PCM_RATE
    phase = np.cumsum(120 + 20 * np.sin(2 * np.pi * 0.7 * time)) / PCM_RATE
    voice = sum(np.sin(2 * np.pi * n * phase) / n for n in range(1, 28))
    noise = np.random.default_rng(5).normal(size=len(time)) * 0.1
    sound = (voice + noise) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))
    return np.asarray(sound * level * 32767 / np.abs(sound).max(), np.int16)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4000), st.lists(st.integers(0, 4000), max_size=12))
def test_the_result_does_not_depend_on_how_the_sound_was_cut(length: int, cuts: list[int]) -> None:
    sound = _hum(4000 / PCM_RATE)[:length]
    embedder = Embedder(KEY, 0xACE1)
    pieces = np.split(sound, sorted(min(cut, length) for cut in cuts))
    out, taken, given_back = [], 0, 0
    for piece in pieces:
        out.append(embedder.push(piece))
        taken += len(piece)
        given_back += len(out[-1])
        assert 0 <= taken - given_back <= DELAY_SAMPLES
    out.append(embedder.finish())
    assert np.array_equal(np.concatenate(out), _marked(sound))


def test_it_is_the_sum_of_frames_that_were_each_worked_on_alone() -> None:
    """The definition, a frame of 20 ms after another: gains of its row's signs, and only what they add."""
    sound = np.concatenate([_hum(0.4), np.zeros(1000, np.int16), _hum(0.3, level=1.0)])
    padded = np.concatenate([np.zeros(240), sound, np.zeros(720)])
    signs, window = Pattern.of(KEY).marked(0xACE1).astype(np.float64), np.sin(np.pi * (np.arange(480) + 0.5) / 480)
    added = np.zeros(len(padded))
    for number, at in enumerate(range(0, len(padded) - 479, 240)):
        frame = padded[at : at + 480]
        gain = np.exp(_weights() @ signs[number // 2 % ROWS]) - 1
        difference = np.fft.irfft(np.fft.rfft(frame * window) * gain, 480) * window
        room, loudest = 32767 - np.abs(frame).max(), np.abs(difference).max()
        added[at : at + 480] += difference * min(1.0, room / loudest if loudest else 1.0)
    expected = np.clip(np.rint(padded + added), -32768, 32767)[240 : 240 + len(sound)]
    assert np.array_equal(_marked(sound), expected)


@pytest.mark.parametrize("length", [0, 1, 239, 240, 241, 479, 480, 481, 24_000])
def test_as_much_comes_out_as_went_in(length: int) -> None:
    assert len(_marked(_hum(1.0)[:length])) == length


def test_twenty_milliseconds_at_most() -> None:
    assert DELAY_SAMPLES <= PCM_RATE // 50


def test_silence_stays_silence_to_the_bit() -> None:
    assert not _marked(np.zeros(PCM_RATE, np.int16)).any()


def test_nothing_is_added_in_a_pause() -> None:
    voice = _hum(0.5)
    sound = np.concatenate([voice, np.zeros(PCM_RATE // 2, np.int16), voice])
    pause = slice(len(voice) + DELAY_SAMPLES, len(voice) + PCM_RATE // 2 - DELAY_SAMPLES)
    assert not _marked(sound)[pause].any()


def test_the_mark_of_a_faint_pause_is_below_minus_70_dbfs() -> None:
    faint = np.random.default_rng(3).normal(scale=32767 * 10 ** (-60 / 20), size=PCM_RATE)
    sound = np.rint(faint).astype(np.int16)
    difference = (_marked(sound).astype(float) - sound) / 32767
    assert 10 * np.log10(np.mean(difference**2)) < -70


@pytest.mark.parametrize("level", [1.0, -1.0])
def test_full_scale_does_not_wrap(level: float) -> None:
    sound = np.clip(_hum(0.5, 1.0).astype(np.int32) * 3, -32768, 32767).astype(np.int16)
    difference = _marked(sound).astype(int) - sound
    assert np.abs(difference).max() < 12_000  # a wrapped sample is off by 65,536


def test_it_marks() -> None:
    sound = _hum(1.0)
    difference = _marked(sound).astype(float) - sound
    ratio = 10 * np.log10(np.mean(difference**2) / np.mean(sound.astype(float) ** 2))
    assert -40 < ratio < -12


def test_other_sound_is_refused() -> None:
    with pytest.raises(ValueError, match="int16"):
        Embedder(KEY, 1).push(np.zeros(480, np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="16 bits"):
        Embedder(KEY, 1 << 16)
    embedder = Embedder(KEY, 1)
    embedder.finish()
    with pytest.raises(ValueError, match="finished"):
        embedder.push(np.zeros(480, np.int16))
    with pytest.raises(ValueError, match="finished"):
        embedder.finish()
