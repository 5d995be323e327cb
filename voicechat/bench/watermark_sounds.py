"""Sounds for the watermark's bench: files and folders, made ones, and our own voices' clips."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import EARS_RATE, PCM_RATE, Pcm

Floats = npt.NDArray[np.float32]
SOUNDS = {".wav", ".flac", ".mp3", ".opus", ".ogg", ".m4a", ".npy"}


KINDS = ("music", "noise", "beat")


def read_sound(path: Path, rate: int = PCM_RATE) -> Pcm:
    """All of a sound file as int16 mono at ``rate``; a ``.npy`` file is int16 ``[n]`` at 24 kHz already."""
    if path.suffix == ".npy" and rate == PCM_RATE:
        pcm: Pcm = np.load(path)
        return pcm
    if path.suffix == ".npy":
        raise ValueError(f"{path} is at {PCM_RATE} Hz")
    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([f.to_ndarray().reshape(-1) for f in frames]) if frames else np.zeros(0, np.int16)


def sound_files(folder: Path) -> list[Path]:
    """All sound files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SOUNDS)


def made_sound(number: int) -> tuple[str, Floats]:
    """A minute at 16 kHz of something that is no speech, another for each number, and what it is: kinds take turns."""
    kind = KINDS[number % len(KINDS)]
    make = {"music": _music, "noise": _noise, "beat": _beat}[kind]
    return kind, make(np.random.default_rng(number))


def _music(rng: np.random.Generator) -> Floats:
    """Chords of plucked harmonics."""
    sound = np.zeros(60 * EARS_RATE)
    for start in np.arange(0, 59.0, rng.choice([0.25, 0.3, 0.5])):
        time = np.arange(int(EARS_RATE * rng.uniform(0.3, 2.0))) / EARS_RATE
        pitch = 110 * 2 ** (rng.choice([0, 2, 4, 5, 7, 9, 11, 12, 14, 16]) / 12 + rng.integers(0, 3))
        note = sum(np.sin(2 * np.pi * pitch * n * time) / n for n in range(1, 12) if pitch * n < 7_500)
        begin = int(start * EARS_RATE)
        note = (note * np.exp(-time * rng.uniform(1, 6)))[: len(sound) - begin]
        sound[begin : begin + len(note)] += note
    return (sound / np.abs(sound).max() * 0.7).astype(np.float32)


def _noise(rng: np.random.Generator) -> Floats:
    """Coloured noise whose loudness wanders."""
    spectrum = np.fft.rfft(rng.normal(size=60 * EARS_RATE))
    spectrum *= (1 + np.arange(len(spectrum)) / 500) ** -rng.uniform(0, 1.2)
    sound = np.fft.irfft(spectrum)
    sound *= np.repeat(10 ** (rng.normal(size=600) * 0.2), EARS_RATE // 10)
    return (sound / np.abs(sound).max() * 0.7).astype(np.float32)


def _beat(rng: np.random.Generator) -> Floats:
    """Regular strokes of noise, twenty to two hundred milliseconds apart: the mark's own rhythm, among others."""
    period = int(EARS_RATE * rng.choice([0.02, 0.04, 0.05, 0.1, 0.2]))
    stroke = np.exp(-np.arange(period) / (period / 4))
    sound = np.tile(stroke, -(-60 * EARS_RATE // period))[: 60 * EARS_RATE] * rng.normal(size=60 * EARS_RATE)
    return (sound / np.abs(sound).max() * 0.7).astype(np.float32)
