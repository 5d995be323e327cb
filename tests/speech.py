"""Sounds that tests speak with: a synthetic voice that a voice activity detector takes for speech."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

FORMANTS = ((700, 110, 1.0), (1220, 120, 0.5), (2600, 160, 0.25))


def voice(seconds: float, rate: int = 16_000, level: float = 0.12) -> npt.NDArray[np.float32]:
    """Syllables of one vowel, three a second, float32 in [-1, 1], RMS about ``level``."""
    t = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 12 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    sound = np.zeros_like(t)
    for harmonic in range(1, 34):
        frequency = 120 * harmonic
        gain = sum(a / (1 + ((frequency - f) / w) ** 2) for f, w, a in FORMANTS) + 0.02 / harmonic
        sound += gain * np.sin(harmonic * phase)
    sound *= 0.12 + 0.88 * np.abs(np.sin(np.pi * 3 * t + 0.5)) ** 1.5
    sound *= level / np.sqrt(np.mean(sound**2))
    return sound.astype(np.float32)


def silence(seconds: float, rate: int = 16_000, level: float = 0.0005) -> npt.NDArray[np.float32]:
    """A quiet room."""
    return (np.random.default_rng(7).standard_normal(int(seconds * rate)) * level).astype(np.float32)


def rms(sound: npt.ArrayLike) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(np.asarray(sound, dtype=np.float64)))))


def write_wav(path: Path, sound: npt.NDArray[np.float32], rate: int) -> Path:
    """A mono 16-bit WAV file of float32 sound."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.clip(np.round(sound * 32767), -32768, 32767).astype("<i2").tobytes())
    return path
