"""What the detector looks at: how much louder each tile is than those before and after it.

Sound becomes frames of 20 ms each 5 ms, a frame the level in dB of every band; from a level the mean of those one row
earlier and later is taken, which takes most of the speech away and leaves the mark. Big outliers are cut off.
"""

from __future__ import annotations

import numpy as np

from voicechat.watermark.code import Floats
from voicechat.watermark.pattern import BANDS, ROW_MS, band_weights

STEP_MS = 5
STEPS_OF_A_ROW = ROW_MS // STEP_MS
_FRAME_MS, _FFT_MS = 20, 40
_CLIP_DB = 4.0
_FLOOR = 1e-12
"""Power, of full scale, that is added to every band: about one step of 16 bits."""
_MAX_STEPS = 4000


class Levels:
    """Levels of the bands, for each of several scales of frequency, as sound comes in. Bounded memory."""

    def __init__(self, rate: int, scales: tuple[float, ...]) -> None:
        self._step, self._frame, self._size = (rate * ms // 1000 for ms in (STEP_MS, _FRAME_MS, _FFT_MS))
        self._window = np.hanning(self._frame + 2)[1:-1].astype(np.float32)
        self._window /= np.sqrt((self._window**2).sum() * self._size / 2)
        self._weights = np.stack([band_weights(rate, self._size, scale) for scale in scales])
        self._sound = np.zeros(self._frame // 2, np.float32)

    def push(self, sound: Floats) -> Floats:
        """Take float32 ``[n]`` in [-1, 1]; dB, float32 ``[steps, scales, BANDS]``. Step i is centred at 5 ms * i."""
        sound = np.concatenate([self._sound, sound])
        count = max(0, (len(sound) - self._frame) // self._step + 1)
        made = [self._levels(sound, first, min(count, first + _MAX_STEPS)) for first in range(0, count, _MAX_STEPS)]
        self._sound = sound[count * self._step :].copy()
        return np.concatenate(made) if made else np.zeros((0, len(self._weights), BANDS), np.float32)

    def finish(self) -> Floats:
        """The steps whose frames reach beyond the end."""
        return self.push(np.zeros(self._frame // 2, np.float32))

    def _levels(self, sound: Floats, first: int, last: int) -> Floats:
        frames = np.lib.stride_tricks.sliding_window_view(sound, self._frame)[first * self._step :: self._step]
        spectrum = np.fft.rfft(frames[: last - first] * self._window, self._size, axis=1)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        bands = np.einsum("tf,sfb->tsb", power, self._weights, optimize=True)
        levels: Floats = (10 * np.log10(bands + np.float32(_FLOOR))).astype(np.float32)
        return levels


def contrasts(levels: Floats) -> Floats:
    """The tiles' contrasts, float32 of the shape of ``levels`` (``[steps, …]``); a row at both ends is not sound."""
    out = np.zeros_like(levels)
    row = STEPS_OF_A_ROW
    if len(levels) > 2 * row:
        out[row:-row] = levels[row:-row] - (levels[: -2 * row] + levels[2 * row :]) / 2
        np.clip(out, -_CLIP_DB, _CLIP_DB, out=out)
    return out
