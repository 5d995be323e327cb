"""The attacks do to sound what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from voicechat.bench.watermark import windows
from voicechat.bench.watermark_attacks import ATTACKS, ROWS
from voicechat.contract.sound import PCM_RATE, Pcm


def _tone(seconds: float = 2.0, hertz: float = 1_000.0) -> Pcm:
    time = np.arange(int(seconds * PCM_RATE)) / PCM_RATE
    return np.asarray(6_000 * np.sin(2 * np.pi * hertz * time), np.int16)


def _pitch(sound: np.ndarray[tuple[int], np.dtype[np.float32]], rate: int) -> float:
    middle = sound[len(sound) // 4 : len(sound) * 3 // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    return float(spectrum.argmax() * rate / len(middle))


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_attack_leaves_a_tone_of_about_its_length_and_pitch(name: str) -> None:
    attack = ATTACKS[name]
    sound, rate = attack.apply(_tone(), 1)
    factor = {"speed+2": 1.02, "speed-2": 0.98}.get(name, 1.0)
    assert attack.row in ROWS
    assert _pitch(sound, rate) == pytest.approx(1_000 * factor, abs=3)
    assert len(sound) / rate == pytest.approx(2.0 / factor, abs=0.4 if name == "cut" else 0.12)


def test_noise_has_the_power_that_is_said() -> None:
    difference = ATTACKS["noise20"].apply(_tone(), 1)[0] - _tone() / 32768
    ratio = np.mean((_tone() / 32768) ** 2) / np.mean(difference**2)
    assert 10 * np.log10(ratio) == pytest.approx(20, abs=0.2)


@pytest.mark.parametrize(("name", "factor"), [("gain+12", 3.981), ("gain-12", 0.2512)])
def test_gain_is_by_twelve_decibels(name: str, factor: float) -> None:
    quiet = (_tone() // 8).astype(np.int16)
    assert ATTACKS[name].apply(quiet, 1)[0].std() / (quiet / 32768).std() == pytest.approx(factor, rel=0.01)


def test_nothing_above_four_kilohertz_is_left_at_8_khz() -> None:
    assert ATTACKS["resample8"].apply(_tone(hertz=6_000), 1)[0].std() < 0.01 * (_tone() / 32768).std()


def test_losses_differ_by_seed_and_are_repeatable() -> None:
    attack = ATTACKS["opus24_loss5"]
    first, again, other = (attack.apply(_tone(), seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_the_room_decays_by_60_db_in_its_time() -> None:
    click = np.zeros(PCM_RATE, np.int16)
    click[0] = 20_000
    heard = ATTACKS["echo"].apply(click, 1)[0]
    early, late = heard[240:1_440], heard[6_480:7_180]  # 10 to 60 ms, and the last of 300 ms
    drop = 10 * np.log10(np.mean(early**2) / np.mean(late**2))
    assert drop == pytest.approx(60 * (0.285 - 0.03) / 0.3, abs=5)


def test_windows_are_of_speech_alone() -> None:
    sound = np.concatenate([np.zeros(PCM_RATE * 3, np.float32), (_tone(4.0) / 32768).astype(np.float32)])
    found = windows(sound, PCM_RATE, 2.0)
    assert found and min(found) >= 2.0 * PCM_RATE
    assert all(b - a >= 2 * PCM_RATE for a, b in zip(found, found[1:], strict=False))
