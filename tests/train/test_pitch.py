"""The pitch of speech against trackers that other people wrote, and of sounds whose pitch and phase are known."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import needed
from tests.cascade.listening import SPEAKERS
from voicechat.contract.sound import EARS_RATE
from voicechat.media.resample import resample
from voicechat.models.embedded.source import pulses
from voicechat.train.pitch import Track, track_pitch

Floats = npt.NDArray[np.float64]

RATE, HOP = 24_000, 240
TEXT = "The capital of France is Paris. Yes, of course! Nobody had expected eleven purple elephants."
FORMANTS = ((700.0, 130.0), (1220.0, 170.0), (2600.0, 250.0))
"""Of the vowel in "father": centre and width in Hz."""
EDGE = 4
"""Frames at an end whose windows hold less than half of the sound."""


def vowel(pitch: Floats, phases: Floats | None = None) -> tuple[Tensor, Floats]:
    """Sound [1, N] of a vowel with this pitch in Hz at each sample, and the phase of its fundamental in cycles [N].

    ``phases``: of the harmonics, in cycles, beyond what their number makes of that of the fundamental.
    """
    cycles = np.cumsum(pitch) / RATE
    sound = np.zeros_like(cycles)
    for number in range(1, int(8000 / pitch.max()) + 1):
        at = number * pitch
        size = sum(1 / (1 + ((at - centre) / width) ** 2) for centre, width in FORMANTS) + 0.3 / number
        own = 0.0 if phases is None or number == 1 else phases[number % len(phases)]
        sound += size * np.cos(2 * np.pi * (number * cycles + own))
    sound *= 0.1 / sound.std()
    return torch.from_numpy(sound).float()[None], cycles


def glide(begin: float, end: float, frames: int) -> Floats:
    return np.geomspace(begin, end, frames * HOP)


def at_middles(values: Floats) -> Floats:
    """Of values by sample, those at the frames' middles."""
    return values[HOP // 2 :: HOP]


def semitones(one: npt.ArrayLike, other: npt.ArrayLike) -> Floats:
    return np.abs(12 * np.log2(np.asarray(one, np.float64) / np.asarray(other, np.float64)))


@cache
def spoken(name: str) -> npt.NDArray[np.float32]:
    """The text in a voice of its own; 24 kHz, whole frames."""
    sound = resample(SPEAKERS[name](TEXT), EARS_RATE, RATE)
    return sound[: len(sound) // HOP * HOP]


def by_pyin(sound: npt.NDArray[np.float32]) -> Floats:
    """Pitches at the frames' middles, 0 where unvoiced, by librosa's probabilistic YIN (Mauch and Dixon, 2014)."""
    librosa = needed.module("librosa")
    found, _, _ = librosa.pyin(sound, fmin=60, fmax=500, sr=RATE, frame_length=1440, hop_length=HOP // 2)
    return np.nan_to_num(found)[1::2][: len(sound) // HOP]


@pytest.mark.parametrize(("begin", "end"), [(90.0, 180.0), (300.0, 120.0), (180.0, 400.0)])
def test_a_vowel_glide_against_another_tracker(begin: float, end: float) -> None:
    pitch = glide(begin, end, 120)
    sound, _ = vowel(pitch)
    track, theirs = track_pitch(sound), by_pyin(sound[0].numpy())
    inside = slice(EDGE, -EDGE)
    ours, theirs, known = track.pitch[0].numpy()[inside], theirs[inside], at_middles(pitch)[inside]
    assert track.voiced[0, inside].all() and (theirs > 0).all()
    assert semitones(ours, theirs).max() < 0.5
    assert semitones(ours, known).max() < 0.1 and np.median(semitones(ours, known)) < 0.03


@pytest.mark.parametrize("name", ["espeak-us", "espeak-gb-female", "teacher"])
def test_speech_against_another_tracker(name: str) -> None:
    sound = spoken(name)
    theirs = by_pyin(sound)
    track = track_pitch(torch.from_numpy(sound)[None])
    ours, voiced = track.pitch[0].numpy(), track.voiced[0].numpy()
    loud = np.sqrt((sound.reshape(-1, HOP) ** 2).mean(1)) > 2e-3  # references find pitches in digital silence, too
    known, both = loud & (theirs > 0), voiced & (theirs > 0)
    assert both.sum() > 0.94 * voiced.sum(), "voiced frames are voiced by the reference, too"
    assert (both & known).sum() > 0.7 * known.sum(), "and most of the reference's are found"
    away = semitones(ours[both], theirs[both])
    assert np.median(away) < 0.25
    assert (away > 1).mean() < 0.04
    assert not (away > 6).any(), "octaves"


@given(st.floats(65, 480), st.floats(65, 480), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_the_pitch_and_phase_of_a_known_signal(begin: float, end: float, seed: int) -> None:
    """Whatever the phases of the harmonics."""
    span = 2 ** np.clip(np.log2(end / begin), -0.7, 0.7)  # of a second: as fast as speech glides
    pitch = glide(begin, begin * span, 100)
    sound, cycles = vowel(pitch, np.random.default_rng(seed).random(40))
    track = track_pitch(sound)
    inside = slice(EDGE, -EDGE)
    known = at_middles(pitch)[inside]
    assert track.voiced[0, inside].all()
    assert semitones(track.pitch[0].numpy()[inside], known).max() < 0.3
    away = track.middles[0].numpy()[inside] - at_middles(cycles)[inside]
    away -= np.round(away)
    # The window holds few periods of a low voice, and then the second harmonic reaches into the first.
    assert np.abs(away).max() < (0.02 if known.min() > 110 else 0.06)


@given(st.floats(110, 400), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=10)
def test_the_pulse_train_lies_where_the_periods_do(pitch: float, seed: int) -> None:
    """The tracked pitch and phases make a pulse train whose fundamental is the sound's own."""
    sound, _ = vowel(glide(pitch, 1.3 * pitch, 60), np.random.default_rng(seed).random(40))
    track = track_pitch(sound)
    again = track_pitch(pulses(track.pitch, track.middles))
    away = (track.middles - again.middles)[0, EDGE:-EDGE]
    assert (away - away.round()).abs().max() < 0.03
    assert semitones(track.pitch[0, EDGE:-EDGE], again.pitch[0, EDGE:-EDGE]).max() < 0.2


def test_nothing_is_voiced_in_silence_and_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(1, 200 * HOP, generator=generator)
    rumble = torch.cumsum(noise, 1)
    rumble = 0.01 * (rumble - rumble.mean())
    for sound in (torch.zeros(1, 200 * HOP), noise, rumble, 1e-5 * vowel(glide(120, 120, 200))[0]):
        track = track_pitch(sound)
        assert track.voiced.float().mean() < 0.02
        assert all(part.isfinite().all() for part in track)
    assert track_pitch(torch.zeros(1, 50 * HOP)).pitch.unique().tolist() == [150.0], "a usual pitch, for want of any"


@pytest.mark.parametrize("decibels", [20, 12])
def test_a_voice_is_heard_through_noise(decibels: float) -> None:
    pitch = glide(110, 180, 150)
    sound, _ = vowel(pitch)
    noise = torch.randn(sound.shape, generator=torch.Generator().manual_seed(1)) * sound.std() * 10 ** (-decibels / 20)
    track = track_pitch(sound + noise)
    inside = slice(EDGE, -EDGE)
    assert track.voiced[0, inside].float().mean() > 0.95
    assert semitones(track.pitch[0].numpy()[inside], at_middles(pitch)[inside]).max() < 1.0


@pytest.mark.parametrize("scale", [0.05, 3.0])
def test_loudness_does_not_count(scale: float) -> None:
    sound, _ = vowel(glide(120, 200, 60))
    track, other = track_pitch(sound), track_pitch(scale * sound)
    assert torch.equal(track.voiced, other.voiced)
    torch.testing.assert_close(track.pitch, other.pitch, rtol=1e-3, atol=0)


@pytest.mark.parametrize("pitch", [90.0, 140.0, 220.0, 350.0])
def test_octaves_are_not_taken_for_each_other(pitch: float) -> None:
    """A strong second harmonic, and periods that are by turns louder and softer: neither moves the pitch."""
    frames = 80
    at = np.arange(frames * HOP) / RATE
    second = sum(size * np.cos(2 * np.pi * k * pitch * at) for k, size in ((1, 0.15), (2, 1.0), (3, 0.3), (4, 0.5)))
    sound, cycles = vowel(np.full(frames * HOP, pitch))
    uneven = sound.numpy() * (1 + 0.1 * np.cos(np.pi * cycles))
    for wave in (0.1 * np.asarray(second)[None], uneven):
        track = track_pitch(torch.from_numpy(wave).float())
        assert semitones(track.pitch[0, EDGE:-EDGE], pitch).max() < 0.3


@pytest.mark.parametrize("pitch", [140.0, 200.0, 400.0])
def test_a_voice_that_breaks_into_the_octave_below(pitch: float) -> None:
    """Every other period is all but missing: for 10 ms that is overheard, for 300 ms it is followed, there alone."""
    frames, first = 90, 30
    sound, cycles = vowel(np.full(frames * HOP, pitch))
    odd = torch.from_numpy(np.floor(cycles + 0.5) % 2 == 1)
    at = torch.arange(frames * HOP)
    for span in (1, 30):
        broken = odd & (at >= first * HOP) & (at < (first + span) * HOP)
        found = track_pitch(torch.where(broken, 0.05 * sound, sound)).pitch[0].numpy()
        expected = np.full(frames, pitch)
        if span > 1:
            expected[first : first + span] /= 2
        sure = np.ones(frames, bool)
        sure[[*range(first - 2, first + 2), *range(first + span - 2, first + span + 2)]] = span == 1
        sure[:EDGE] = sure[-EDGE:] = False
        assert semitones(found[sure], expected[sure]).max() < 0.5


def test_gaps_are_drawn_straight() -> None:
    """Two vowels, noise or nothing between and around them."""
    low, high = vowel(np.full(40 * HOP, 120.0))[0], vowel(np.full(40 * HOP, 240.0))[0]
    hiss = 0.02 * torch.randn(1, 30 * HOP, generator=torch.Generator().manual_seed(0))
    track = track_pitch(torch.cat((torch.zeros(1, 20 * HOP), low, hiss, high, torch.zeros(1, 20 * HOP)), 1))
    pitch, voiced = (part[0].numpy() for part in (track.pitch, track.voiced))
    assert voiced[24:56].all() and voiced[94:126].all()
    assert not voiced[64:86].any() and not voiced[:16].any() and not voiced[-16:].any()
    known = np.flatnonzero(voiced)
    np.testing.assert_allclose(pitch, np.interp(np.arange(len(pitch)), known, pitch[known]), rtol=1e-5)
    assert semitones(pitch[:20], 120).max() < 0.5 and semitones(pitch[-20:], 240).max() < 0.5
    assert (np.diff(pitch[64:86]) > 1).all()


@pytest.mark.parametrize("frames", [0, 1, 2, 5])
def test_a_short_sound(frames: int) -> None:
    sound, _ = vowel(np.full(5 * HOP, 200.0))
    track = track_pitch(sound[:, : frames * HOP])
    assert [part.shape for part in track] == 3 * [(1, frames)]
    assert track.voiced.dtype == torch.bool and track.pitch.dtype == track.middles.dtype == torch.float32
    assert all(part.isfinite().all() for part in track)


def test_sounds_of_a_batch_do_not_touch() -> None:
    sounds = torch.cat([vowel(glide(begin, 150, 30))[0] for begin in (90, 150, 260)])
    every = track_pitch(sounds)
    for number in range(3):
        one = track_pitch(sounds[number : number + 1])
        together = Track(*(part[number : number + 1] for part in every))
        assert torch.equal(one.voiced, together.voiced)
        torch.testing.assert_close(one.pitch, together.pitch, rtol=1e-4, atol=0)
        torch.testing.assert_close(one.middles, together.middles, rtol=0, atol=1e-3)
