"""What the detector looks at: for every tile, how much it seems to have been made louder or softer.

Sound becomes frames of 20 ms each 5 ms, a frame the level in dB of every half band. A small network
(:mod:`voicechat.watermark.front`) then takes away, from what is around a tile, what the speech itself explains; what
is left is the tile's *contrast*. It knows no key: a better one finds more, a worse one less, and neither changes what
a p-value means.
"""

from __future__ import annotations

import numpy as np

from voicechat.watermark.code import Floats
from voicechat.watermark.front import Front, front
from voicechat.watermark.pattern import BANDS, ROW_MS, band_weights

STEP_MS = 5
STEPS_OF_A_ROW = ROW_MS // STEP_MS
AROUND = 10
"""Steps before and after a tile's middle that are looked at."""

_FRAME_MS, _FFT_MS = 20, 64
_FLOOR = 1e-12
_HISTORY = 1600
"""Steps, before those that are new, from which the loudness of the sound and of its background is taken."""
_BLOCK = 100


class Levels:
    """Levels of the half bands, for each of several scales of frequency, as sound comes in."""

    def __init__(self, rate: int, scales: tuple[float, ...]) -> None:
        self._step, self._frame, self._size = (rate * ms // 1000 for ms in (STEP_MS, _FRAME_MS, _FFT_MS))
        self._window = np.hanning(self._frame + 2)[1:-1].astype(np.float32)
        self._window /= self._window.sum()
        self._weights = np.concatenate([band_weights(rate, self._size, scale, halves=True) for scale in scales], 1)
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
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        levels: Floats = 10 * np.log10(power @ self._weights + np.float32(_FLOOR))
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
        made = contrasts(self._levels, np.arange(self._done, until), self._front)
        spare = max(0, until - _HISTORY)
        self._levels = self._levels[spare:]
        self._done = until - spare
        return made

    def finish(self) -> Floats:
        """The rest; what follows the end is taken to be like it."""
        return self.push(np.repeat(self._levels[-1:], AROUND, 0))


def contrasts(levels: Floats, steps: np.ndarray[tuple[int], np.dtype[np.int64]], network: Front) -> Floats:
    """Contrasts at some steps of ``levels`` ``[n, scales, 2 * BANDS]``, each at least :data:`AROUND` from both ends."""
    out = np.empty((len(steps), levels.shape[1], BANDS), np.float32)
    whole = levels.reshape(*levels.shape[:2], BANDS, 2).mean(3)
    loud = np.percentile(whole[:, 0].max(1), 80).astype(np.float32)
    background = np.percentile(whole[::4], 5, axis=0).astype(np.float32)
    for first in range(0, len(steps), _BLOCK):
        block = steps[first : first + _BLOCK]
        out[first : first + _BLOCK] = network(inputs(levels, whole, block, loud, background))
    return out


def inputs(
    levels: Floats,
    whole: Floats,
    steps: np.ndarray[tuple[int], np.dtype[np.int64]],
    loud: np.float32,
    background: Floats,
) -> Floats:
    """What the network sees of every tile: float32 ``[steps, scales, BANDS, INPUTS]``."""
    padded = np.pad(levels, ((0, 0), (0, 0), (2, 2)), mode="edge")
    around = padded[steps[:, None] + np.arange(-AROUND, AROUND + 1)[None, :]]  # [steps, 21, scales, 2 * BANDS + 4]
    patches = np.lib.stride_tricks.sliding_window_view(around, 6, axis=3)[:, :, :, ::2]  # [steps, 21, scales, BANDS, 6]
    patches = np.moveaxis(patches, 1, 3).reshape(len(steps), levels.shape[1], BANDS, -1)
    patches = np.clip(patches - patches.mean(3, keepdims=True), -15, 15) / 5
    here = whole[steps]
    places = np.broadcast_to(np.linspace(-1, 1, BANDS, dtype=np.float32), here.shape)
    more = np.stack([(here - loud) / 20, (here - here.max(2, keepdims=True)) / 20, (here - background) / 20, places], 3)
    seen: Floats = np.concatenate([patches, np.clip(more, -4, 4)], 3).astype(np.float32)
    return seen
