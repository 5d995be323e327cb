"""Sounds of the scripted set that nobody speaks, made from noise and pulses, the same for the same seed.

Every function takes a seed and gives float32 at :data:`voicechat.bench.script.SOUND_RATE`; levels are set elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from voicechat.bench.script import SOUND_RATE

Floats = npt.NDArray[np.float32]
_Wave = npt.NDArray[np.float64]

LOOP_S = 8.0
"""Length of what is looped as a background."""


def cough(seed: int) -> Floats:
    """One to three coughs: a burst as the throat opens, then noise that dies away, often with a voiced end."""
    rng = np.random.default_rng(seed)
    parts = []
    for index in range(1 + seed % 3):
        burst = _band(rng, 0.05, 300, 7000) * _decay(0.05, 0.002, 0.02)
        length = rng.uniform(0.14, 0.24)
        breath = _resonant(_band(rng, length, 200, 5000), ((600, 300), (1500, 500), (2800, 700)))
        breath = _unit(breath) * 0.6 * _decay(length, 0.01, length / 3)
        sound = np.concatenate([1.5 * _unit(burst), breath])
        if (seed + index) % 2:
            voiced = _unit(_resonant(_pulses(rng, 0.1, 190, 120, 0.05), ((500, 120), (1300, 180))))
            at = len(sound) - int(0.08 * SOUND_RATE)
            end = np.zeros(at + len(voiced))
            end[: len(sound)] = sound
            end[at:] += 0.35 * voiced * np.hanning(len(voiced))
            sound = end
        parts += [sound, np.zeros(int(rng.uniform(0.12, 0.25) * SOUND_RATE))]
    return _float(np.concatenate(parts[:-1]))


def throat(seed: int) -> Floats:
    """Somebody clears their throat: a rough, low voice with much breath, twice."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(2):
        length = rng.uniform(0.18, 0.32)
        source = _unit(_pulses(rng, length, 105, 85, 0.12)) + 0.8 * _unit(_band(rng, length, 200, 4000))
        rough = 1 + 0.6 * np.sin(2 * np.pi * 27 * np.arange(len(source)) / SOUND_RATE)
        sound = _resonant(source * rough, ((450, 130), (1100, 200), (2400, 400)))
        parts += [_unit(sound) * _swell(len(sound), 0.03, 0.08), np.zeros(int(0.07 * SOUND_RATE))]
    return _float(np.concatenate(parts))


def clap(seed: int) -> Floats:
    """One to three claps with a little of the room."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(1 + seed % 3):
        hit = _unit(_band(rng, 0.03, 800, 5000)) * _decay(0.03, 0.0005, 0.006)
        room = _unit(_band(rng, 0.25, 300, 4000)) * _decay(0.25, 0.001, 0.05) * 0.15
        room[: len(hit)] += 2 * hit
        parts += [room, np.zeros(int(rng.uniform(0.05, 0.2) * SOUND_RATE))]
    return _float(np.concatenate(parts))


def typing(seed: int) -> Floats:
    """Two seconds of a keyboard: each key goes down with a thump and comes up with a click."""
    rng = np.random.default_rng(seed)
    sound = np.zeros(int(2.2 * SOUND_RATE))
    at = 0.02
    while at < 2.0:
        click = _unit(_band(rng, 0.02, 1800, 8000)) * _decay(0.02, 0.0005, 0.004)
        thump = _unit(_band(rng, 0.04, 90, 400)) * _decay(0.04, 0.002, 0.012) * 0.5
        strength = rng.uniform(0.5, 1.0)
        _add(sound, at, strength * (_padded(click, len(thump)) + thump))
        _add(sound, at + rng.uniform(0.05, 0.09), 0.4 * strength * click)
        at += rng.choice([0.11, 0.14, 0.18, 0.35], p=[0.35, 0.35, 0.2, 0.1]) * rng.uniform(0.85, 1.15)
    return _float(sound)


def door(seed: int) -> Floats:
    """A door falls shut: a low thud, the latch, and the room."""
    rng = np.random.default_rng(seed)
    sound = np.zeros(int(0.7 * SOUND_RATE))
    _add(sound, 0.0, 2.0 * _unit(_band(rng, 0.3, 50, 350)) * _decay(0.3, 0.003, 0.06))
    _add(sound, 0.02, 0.5 * _unit(_band(rng, 0.1, 900, 4500)) * _decay(0.1, 0.001, 0.015))
    _add(sound, 0.05, 0.15 * _unit(_band(rng, 0.6, 150, 2500)) * _decay(0.6, 0.01, 0.12))
    return _float(sound)


def sneeze(seed: int) -> Floats:
    """Breath is drawn in, and bursts out, with a hoarse voice that dies away in it."""
    rng = np.random.default_rng(seed)
    drawn = _unit(_band(rng, rng.uniform(0.25, 0.4), 800, 6000)) * 0.25
    drawn *= np.linspace(0.1, 1.0, len(drawn)) ** 2
    length = rng.uniform(0.25, 0.4)
    out = _unit(_band(rng, length, 900, 9000)) * _decay(length, 0.004, length / 4)
    voiced = _unit(_resonant(_pulses(rng, length / 2, 240, 150, 0.1), ((650, 150), (1700, 250))))
    out[: len(voiced)] += 0.4 * voiced * _decay(length / 2, 0.01, length / 6)[: len(voiced)]
    return _float(np.concatenate([drawn, np.zeros(int(0.04 * SOUND_RATE)), 1.6 * out]))


def keys(seed: int) -> Floats:
    """A bunch of keys: many short bright rings."""
    rng = np.random.default_rng(seed)
    sound = np.zeros(int(1.6 * SOUND_RATE))
    for _ in range(rng.integers(14, 26)):
        ring = np.zeros(int(0.12 * SOUND_RATE))
        t = np.arange(len(ring)) / SOUND_RATE
        for _ in range(4):
            ring += np.sin(2 * np.pi * rng.uniform(2500, 9500) * t + rng.uniform(0, 6)) * np.exp(-t / 0.025)
        _add(sound, rng.uniform(0.02, 1.45), rng.uniform(0.3, 1.0) * ring)
    return _float(sound)


def knock(seed: int) -> Floats:
    """Somebody knocks at a wooden door, two to four times."""
    rng = np.random.default_rng(seed)
    sound = np.zeros(int(1.3 * SOUND_RATE))
    for index in range(2 + seed % 3):
        wood = _unit(_resonant(_band(rng, 0.12, 80, 2500), ((190, 60), (420, 90), (900, 200))))
        _add(sound, 0.02 + index * rng.uniform(0.2, 0.28), wood * _decay(0.12, 0.001, 0.022))
    return _float(sound)


def hum(seed: int) -> Floats:
    """ "Mm-hm": two nasal syllables with a breath between them, the second one higher."""
    rng = np.random.default_rng(seed)
    pitch = rng.uniform(105, 210)
    sound = np.zeros(int(0.62 * SOUND_RATE))
    nose = ((260, 60), (1050, 250), (2300, 400))
    for at, length, start, end in ((0.0, 0.2, 1.0, 0.92), (0.3, 0.28, 1.0, 1.28)):
        voiced = _unit(_resonant(_pulses(rng, length, pitch * start, pitch * end, 0.008), nose, tilt=1.5))
        _add(sound, at, voiced * _swell(len(voiced), 0.04, 0.09))
    breath = _unit(_band(rng, 0.1, 400, 3500))
    _add(sound, 0.2, 0.06 * breath * np.hanning(len(breath)))
    return _float(sound)


def fan(seed: int) -> Floats:
    """A fan or an air conditioner: steady low noise and the motor's hum. A loop."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(LOOP_S * SOUND_RATE)) / SOUND_RATE
    motor = sum(np.sin(2 * np.pi * 100 * k * t + k) / k**2 for k in range(1, 5))
    return _float(_unit(_coloured(rng, len(t), 1.0, 60, 6000)) + 0.15 * motor)


def street(seed: int) -> Floats:
    """A street: a low rumble, and cars that pass. A loop."""
    rng = np.random.default_rng(seed)
    count = int(LOOP_S * SOUND_RATE)
    t = np.arange(count) / SOUND_RATE
    sound = _unit(_coloured(rng, count, 1.6, 40, 5000))
    for _ in range(3):
        middle, width = rng.uniform(0, LOOP_S), rng.uniform(0.5, 1.1)
        away = (t - middle + LOOP_S / 2) % LOOP_S - LOOP_S / 2
        sound += 1.4 * _unit(_coloured(rng, count, 0.8, 150, 3500)) * np.exp(-0.5 * (away / width) ** 2)
    return _float(sound)


def rain(seed: int) -> Floats:
    """Rain on a window: a wide hiss, and drops. A loop."""
    rng = np.random.default_rng(seed)
    count = int(LOOP_S * SOUND_RATE)
    sound = _unit(_coloured(rng, count, 0.4, 300, 9000))
    for _ in range(160):
        drop = _unit(_band(rng, 0.01, 1500, 7000)) * _decay(0.01, 0.0004, 0.002)
        _add(sound, rng.uniform(0, LOOP_S - 0.02), rng.uniform(0.5, 2.5) * drop)
    return _float(sound)


def kettle(seed: int) -> Floats:
    """Water that boils: a rumble with bubbles, and a thin whistle that wavers. A loop."""
    rng = np.random.default_rng(seed)
    count = int(LOOP_S * SOUND_RATE)
    t = np.arange(count) / SOUND_RATE
    bubbles = 1 + 0.4 * _unit(_coloured(rng, count, 0.0, 8, 40))
    whistle = np.sin(2 * np.pi * (2100 * t + 6 * np.sin(2 * np.pi * 3 * t / LOOP_S)))
    return _float(_unit(_coloured(rng, count, 1.2, 100, 4000)) * bubbles + 0.2 * whistle)


def babble(voices: list[Floats]) -> Floats:
    """Many people talk at once: ``voices`` over one another, each twice, from where the one before is half done. A
    loop."""
    count = int(LOOP_S * SOUND_RATE)
    sound = np.zeros(count)
    at = 0
    for turn in range(2):
        for index, voice in enumerate(voices):
            heard = _unit(voice.astype(np.float64)) * (1.0 if (index + turn) % 2 else 0.7)
            places = (at + np.arange(len(heard))) % count
            np.add.at(sound, places, heard)
            at += len(heard) // 2
    return _float(sound)


EFFECTS: dict[str, Callable[[int], Floats]] = {
    "cough": cough, "throat": throat, "clap": clap, "typing": typing, "door": door, "mm-hm": hum,
    "sneeze": sneeze, "keys": keys, "knock": knock,
}  # fmt: skip
"""Single sounds."""

BACKGROUNDS: dict[str, Callable[[int], Floats]] = {"fan": fan, "street": street, "rain": rain, "kettle": kettle}
"""Loops; ``babble`` is one too, but needs voices."""


def _band(rng: np.random.Generator, seconds: float, low: float, high: float) -> _Wave:
    """White noise between two frequencies."""
    return _coloured(rng, int(seconds * SOUND_RATE), 0.0, low, high)


def _coloured(rng: np.random.Generator, count: int, slope: float, low: float, high: float) -> _Wave:
    """Noise whose power falls with frequency to the power of ``slope``, between two frequencies."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    frequency = np.fft.rfftfreq(count, 1 / SOUND_RATE)
    shape = np.maximum(frequency, low) ** (-slope / 2)
    shape /= np.sqrt(1 + (np.maximum(frequency, 1) / high) ** 8) * np.sqrt(1 + (low / np.maximum(frequency, 1)) ** 8)
    return np.asarray(np.fft.irfft(spectrum * shape, count))


def _pulses(rng: np.random.Generator, seconds: float, start: float, end: float, jitter: float) -> _Wave:
    """Pulses of a voice whose pitch goes from ``start`` to ``end`` Hz, each displaced by about ``jitter`` periods."""
    sound = np.zeros(int(seconds * SOUND_RATE))
    at = 0.0
    while at < len(sound):
        sound[int(at)] = 1 + 0.1 * rng.standard_normal()
        pitch = start + (end - start) * at / len(sound)
        at += SOUND_RATE / pitch * max(0.5, 1 + jitter * rng.standard_normal())
    return sound


def _resonant(source: _Wave, formants: tuple[tuple[float, float], ...], tilt: float = 1.0) -> _Wave:
    """``source`` through a mouth: resonances as (frequency, width), and a fall of ``tilt`` times 6 dB an octave."""
    spectrum = np.fft.rfft(source)
    frequency = np.fft.rfftfreq(len(source), 1 / SOUND_RATE)
    shape = np.full(len(frequency), 0.02)
    for index, (centre, width) in enumerate(formants):
        shape += 1 / (1 + index) / (1 + ((frequency - centre) / width) ** 2)
    shape *= (np.maximum(frequency, 100) / 100) ** (-tilt / 2)
    return np.asarray(np.fft.irfft(spectrum * shape, len(source)))


def _decay(seconds: float, attack: float, fall: float) -> _Wave:
    t = np.arange(int(seconds * SOUND_RATE)) / SOUND_RATE
    return np.asarray((1 - np.exp(-t / attack)) * np.exp(-t / fall))


def _swell(count: int, rise: float, fall: float) -> _Wave:
    t = np.arange(count) / SOUND_RATE
    end = count / SOUND_RATE
    return np.asarray(np.minimum(1, t / rise) * np.minimum(1, (end - t) / fall))


def _unit(sound: _Wave) -> _Wave:
    return np.asarray(sound / max(float(np.sqrt(np.mean(np.square(sound)))), 1e-12))


def _padded(sound: _Wave, count: int) -> _Wave:
    padded = np.zeros(count)
    padded[: len(sound)] = sound[:count]
    return padded


def _add(sound: _Wave, at_s: float, piece: _Wave) -> None:
    start = int(at_s * SOUND_RATE)
    room = sound[start : start + len(piece)]
    room += piece[: len(room)]


def _float(sound: _Wave) -> Floats:
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)
