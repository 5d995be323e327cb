"""What the detector looks at: for every tile, how much it seems to have been made louder or softer.

Sound becomes frames of 20 ms each 5 ms, a frame the level in dB of every half band. A small network
(:mod:`voicechat.watermark.front`) then takes away, from what is around a tile, what the speech itself explains; what
is left is the tile's *contrast*. It knows no key: a better one finds more, a worse one less, and neither changes what
a p-value means.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from voicechat.watermark.code import Floats
from voicechat.watermark.front import INPUTS, Front, front
from voicechat.watermark.pattern import BANDS, ROW_MS, band_weights

STEP_MS = 5
STEPS_OF_A_ROW = ROW_MS // STEP_MS
AROUND = 10
"""Steps before and after a tile's middle that are looked at."""

_FRAME_MS, _FFT_MS = 20, 64
_FLOOR = 1e-12
_DB = np.float32(10 / np.log(10))
_HISTORY = 1600
"""Steps, before those that are new, from which the loudness of the sound and of its background is taken."""
_BLOCK = 20
"""Steps that the network sees at a time: what it works on then fits into a core's cache."""
_SPAN = 2 * AROUND + 1


class Levels:
    """Levels of the half bands, for each of several scales of frequency, as sound comes in."""

    def __init__(self, rate: int, scales: tuple[float, ...]) -> None:
        self._step, self._frame, self._size = (rate * ms // 1000 for ms in (STEP_MS, _FRAME_MS, _FFT_MS))
        self._window = np.hanning(self._frame + 2)[1:-1].astype(np.float32)
        self._window /= self._window.sum()
        weights = np.concatenate([band_weights(rate, self._size, scale, halves=True) for scale in scales], 1)
        self._weights = weights[: int(np.flatnonzero(weights.any(1)).max()) + 1]
        self._shape = (len(scales), 2 * BANDS)
        self._sound = np.zeros(self._frame // 2, np.float32)

    def push(self, sound: Floats) -> Floats:
        """Take float32 ``[n]``; dB, float32 ``[steps, scales, 2 * BANDS]``. Step i is centred at 5 ms * i."""
        sound = np.concatenate([self._sound, sound])
        count = max(0, (len(sound) - self._frame) // self._step + 1)
        self._sound = sound[count * self._step :].copy()
        if not count:
            return np.zeros((0, *self._shape), np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(sound, self._frame)[:: self._step][:count]
        spectrum = np.fft.rfft(frames * self._window, self._size, axis=1)
        spectrum = spectrum[:, : len(self._weights)]
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        levels: Floats = _DB * np.log(power @ self._weights + np.float32(_FLOOR))
        return levels.reshape(count, *self._shape)

    def finish(self) -> Floats:
        """The steps whose frames reach beyond the end."""
        return self.push(np.zeros(self._frame // 2, np.float32))


class Contrasts:
    """Contrasts of the tiles around every step, as levels come in; :data:`AROUND` steps behind. Bounded memory."""

    def __init__(self, scales: int) -> None:
        self._front: Front = front()
        # as if there had been nothing before
        self._levels: Floats = np.zeros((0, scales, 2 * BANDS), np.float32)
        self._done = 0

    def push(self, levels: Floats) -> Floats:
        """Take levels ``[steps, scales, 2 * BANDS]``; contrasts that have become certain ``[steps, scales, BANDS]``."""
        if not len(self._levels) and len(levels):
            levels = np.concatenate([np.repeat(levels[:1], AROUND, 0), levels])
            self._done = AROUND
        self._levels = np.concatenate([self._levels, levels])
        until = len(self._levels) - AROUND
        if until <= self._done:
            return np.zeros((0, levels.shape[1], BANDS), np.float32)
        made = contrasts(self._levels, self._done, self._front)
        spare = max(0, until - _HISTORY)
        self._levels = self._levels[spare:]
        self._done = until - spare
        return made

    def finish(self) -> Floats:
        """The rest; what follows the end is taken to be like it."""
        return self.push(np.repeat(self._levels[-1:], AROUND, 0))


def contrasts(levels: Floats, first: int, network: Front) -> Floats:
    """Contrasts of the steps of ``levels`` ``[n, scales, 2 * BANDS]`` from ``first`` on, that is not below
    :data:`AROUND`, up to where :data:`AROUND` steps follow.
    """
    seen = inputs(levels[first - AROUND :], *loudness(levels))
    return np.concatenate([network(block) for block in seen])


def loudness(levels: Floats) -> tuple[np.float32, Floats]:
    """How loud a sound is whose levels ``[n, scales, 2 * BANDS]`` these are, in dB, and its background ``[scales,
    BANDS]``.
    """
    loudest: Floats = (levels[:, 0, ::2] + levels[:, 0, 1::2]).max(1) / np.float32(2)
    some = np.ascontiguousarray(np.moveaxis(levels[::4], 0, 2))
    return np.float32(_quantile(loudest, 0.8)), _quantile((some[:, ::2] + some[:, 1::2]) / np.float32(2), 0.05)


def _quantile(values: Floats, share: float) -> Floats:
    """Over the last axis, as numpy's, which is slow where that is not the first."""
    place = (values.shape[-1] - 1) * share
    low = int(place)
    high = min(low + 1, values.shape[-1] - 1)
    values = np.partition(values, (low, high), axis=-1)
    out: Floats = values[..., low] + (values[..., high] - values[..., low]) * np.float32(place - low)
    return out


def inputs(levels: Floats, loud: np.float32, background: Floats) -> Iterator[Floats]:
    """What the network sees of the tiles of every step of ``levels`` but the first and last :data:`AROUND`.

    Float32 ``[INPUTS, steps, scales, BANDS]``, a few steps at a time: three bands' halves around, at every step around,
    without their mean; and how the tile's own level is to the sound's, to the loudest of its time, to the background's;
    and its place.
    """
    steps, scales = len(levels) - 2 * AROUND, levels.shape[1]
    fifths = np.pad(levels / np.float32(5), ((0, 0), (0, 0), (2, 2)), mode="edge")
    halves = np.ascontiguousarray(np.moveaxis(fifths.reshape(len(levels), scales, -1, 2), 3, 0))  # [2, n, scales, 46]
    pairs = halves[0] + halves[1]
    sums = pairs[..., :-2] + pairs[..., 1:-1] + pairs[..., 2:]
    before = np.concatenate([np.zeros((1, scales, BANDS)), np.cumsum(sums, 0, np.float64)])
    mean = ((before[_SPAN:] - before[:-_SPAN]) / (6 * _SPAN)).astype(np.float32)
    parity, step, scale, band = halves.strides
    patches = np.lib.stride_tricks.as_strided(
        halves, (_SPAN, 3, 2, steps, scales, BANDS), (step, band, parity, step, scale, band), writeable=False
    )
    here = pairs[AROUND : AROUND + steps, :, 1:-1] * np.float32(2.5)
    more = np.stack([here - loud, here - here.max(2, keepdims=True), here - background]) / np.float32(20)
    np.clip(more, -4, 4, out=more)
    places = np.linspace(-1, 1, BANDS, dtype=np.float32)
    for first in range(0, steps, _BLOCK):
        these = slice(first, min(first + _BLOCK, steps))
        seen = np.empty((INPUTS, these.stop - first, scales, BANDS), np.float32)
        around = seen[:-4].reshape(_SPAN, 3, 2, *seen.shape[1:])
        np.subtract(patches[:, :, :, these], mean[these], out=around)
        np.clip(around, -3, 3, out=around)
        seen[-4:-1], seen[-1] = more[:, these], places
        yield seen
