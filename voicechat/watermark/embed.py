"""Marks a reply as it is spoken: whole sounds or pieces of any size in, as many samples out, at most 20 ms later."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.watermark.keys import Key
from voicechat.watermark.pattern import BAND_HZ, BANDS, LOWEST_HZ, ROW_MS, ROWS, Pattern, band_weights

DELAY_SAMPLES = 480
"""The most samples at 24 kHz that have gone in and not yet come out."""

_FRAME = 480
_HOP = 240
_FRAMES_OF_A_ROW = ROW_MS * PCM_RATE // 1000 // _HOP
_DEPTHS_DB = ((1_500, 0.3), (3_000, 1.2), (4_000, 2.5), (np.inf, 3.0))
"""How much louder or softer a tile is made, by the highest frequency for which that holds: little where the voice is
all tone and a change is heard as roughness, more where it is like noise."""
_FULL = 32767.0

Doubles = npt.NDArray[np.float64]


class Embedder:
    """The mark of one reply. Not safe for use from two threads at once.

    Sound is taken in frames of 20 ms, one each 10 ms; in each the bands' gains are moved by the tiles' signs, and only
    the difference is added to the sound, so that where nothing sounds nothing is added, to the bit. Every frame is
    worked on alone and whole, so that the result does not depend on how the sound was cut into pieces; but all frames
    of a piece at once: a server marks the sound of hundreds of callers on one processor.
    """

    def __init__(self, key: Key, payload: int) -> None:
        """Raises ``ValueError`` unless ``payload`` is in [0, 65536)."""
        self._gains = _gains(key, payload)
        self._input = np.zeros(_HOP, np.int16)  # the first frame begins before the sound: half of it is nothing
        self._tail: Doubles = np.zeros(_HOP)
        self._frames = 0
        self._owed = 0
        self._finished = False

    def push(self, pcm: Pcm) -> Pcm:
        """Take int16 ``[n]`` at 24 kHz, n may be 0; what has become certain, int16 ``[m]``."""
        if self._finished:
            raise ValueError("this reply was already finished")
        if pcm.ndim != 1 or pcm.dtype != np.int16:
            raise ValueError(f"sound must be int16 [n], not {pcm.dtype} {list(pcm.shape)}")
        self._owed += len(pcm)
        return self._advance(pcm)

    def finish(self) -> Pcm:
        """The rest, so that as much has come out as went in. Takes no more sound after this."""
        if self._finished:
            raise ValueError("this reply was already finished")
        self._finished = True
        owed = self._owed
        rest = self._advance(np.zeros(_FRAME + _HOP, np.int16))
        return rest[:owed]

    def _advance(self, pcm: Pcm) -> Pcm:
        """The first half of a frame's time is complete with it; of the very first frame it lies before the sound."""
        sound = np.concatenate([self._input, pcm])
        count = max(0, (len(sound) - _FRAME) // _HOP + 1)
        self._input = sound[count * _HOP :].copy()
        if not count:
            return np.zeros(0, np.int16)
        frames = sliding_window_view(sound, _FRAME)[: count * _HOP : _HOP].astype(np.float64)
        rows = np.arange(self._frames, self._frames + count) // _FRAMES_OF_A_ROW % ROWS
        difference = _difference(frames, self._gains[rows])
        ready = difference[:, :_HOP].copy()
        ready[0] += self._tail
        ready[1:] += difference[:-1, _HOP:]
        self._tail = difference[-1, _HOP:].copy()
        made: Pcm = np.clip(np.rint(frames[:, :_HOP] + ready), -_FULL - 1, _FULL).astype(np.int16)
        out = made[0 if self._frames else 1 :].reshape(-1)
        self._frames += count
        self._owed -= len(out)
        return out


def _difference(frames: Doubles, gains: Doubles) -> Doubles:
    """What is added to each frame, float64 ``[n, 480]``; ``gains`` ``[n, bins]``: of what is there. Nothing to silence,
    and never so much that the sum would be clipped."""
    difference: Doubles = np.fft.irfft(np.fft.rfft(frames * _window()) * gains, _FRAME) * _window()
    room = _FULL - np.abs(frames).max(axis=1)
    loudest = np.abs(difference).max(axis=1)
    too_loud = loudest > room
    difference[too_loud] *= (room[too_loud] / loudest[too_loud])[:, None]
    return difference


@functools.cache
def _window() -> Doubles:
    """Root of a Hann window; its squares at two neighbours add up to one."""
    window: Doubles = np.sin(np.pi * (np.arange(_FRAME) + 0.5) / _FRAME)
    return window


@functools.cache
def _weights() -> Doubles:
    """Change of the logarithm of every bin's gain, for a sign +1 of every band: float64 ``[bins, BANDS]``."""
    middles = LOWEST_HZ + BAND_HZ * (np.arange(BANDS) + 0.5)
    depths = np.array([next(depth for limit, depth in _DEPTHS_DB if middle < limit) for middle in middles])
    return band_weights(PCM_RATE, _FRAME).astype(np.float64) * (depths * np.log(10) / 20)


@functools.lru_cache(maxsize=16)
def _gains(key: Key, payload: int) -> Doubles:
    """What is added of every bin in each row of the pattern: float64 ``[ROWS, bins]``."""
    signs = Pattern.of(key).marked(payload).astype(np.float64)
    return np.stack([np.exp(_weights() @ row) - 1.0 for row in signs])
