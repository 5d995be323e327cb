"""Sample-rate conversion and sample formats, on top of libswresample."""

from __future__ import annotations

from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Pcm = npt.NDArray[np.int16]

MIN_RATE = 1_000
MAX_RATE = 768_000
_FLOAT = av.AudioFormat("flt")
_MONO = av.AudioLayout("mono")


def to_float(pcm: Pcm) -> Floats:
    """int16 ``[n]`` to float32 ``[n]`` in [-1, 1)."""
    return pcm.astype(np.float32) / np.float32(32768.0)


def to_pcm(samples: Floats) -> Pcm:
    """float32 ``[n]`` to int16 ``[n]``: rounded to the nearest step, and clipped where it is louder than full scale."""
    scaled: Floats = np.rint(samples * np.float32(32768.0))
    pcm: Pcm = np.clip(scaled, -32768, 32767).astype(np.int16)
    return pcm


class Resampler:
    """Stateful mono resampler: float32 at ``rate_in`` Hz in, float32 at ``rate_out`` Hz out, same level.

    The sum of all that :meth:`push` and :meth:`flush` return is the same whatever the sizes of the pieces pushed,
    starts at the same instant as the input, and is ``ceil(n * rate_out / rate_in)`` samples long.
    Output lags the input by the filter's half length (under 2 ms at speech rates) until :meth:`flush`.
    Not safe for use from two threads at once.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        for rate in (rate_in, rate_out):
            if not MIN_RATE <= rate <= MAX_RATE:
                raise ValueError(f"sample rate {rate} Hz is outside {MIN_RATE}..{MAX_RATE} Hz")
        self.rate_in = rate_in
        self.rate_out = rate_out
        self._taken = 0
        self._given = 0
        self._last = np.float32(0.0)
        self._flushed = False
        self._swr = None
        if rate_in != rate_out:
            self._swr = av.AudioResampler(format=_FLOAT, layout=_MONO, rate=rate_out)

    def push(self, samples: Floats) -> Floats:
        """The part of the output that has become certain with ``samples`` (float32 ``[n]``, n may be 0)."""
        if self._flushed:
            raise ValueError("the resampler was already flushed")
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise ValueError(f"samples must be float32 [n], not {samples.dtype} {list(samples.shape)}")
        if self._swr is None:
            return samples
        if samples.size == 0:
            return np.zeros(0, np.float32)
        self._taken += samples.size
        self._last = samples[-1]
        frame = av.AudioFrame(_FLOAT, _MONO, samples.size)
        frame.planes[0].update(samples.tobytes())
        frame.sample_rate = self.rate_in
        out = _join(self._swr.resample(frame))
        self._given += out.size
        return out

    def flush(self) -> Floats:
        """The rest of the output. The resampler takes no more input after this."""
        if self._flushed:
            raise ValueError("the resampler was already flushed")
        self._flushed = True
        if self._swr is None or not self._taken:
            return np.zeros(0, np.float32)
        rest = _join(self._swr.resample(None))
        missing = -(-self._taken * self.rate_out // self.rate_in) - self._given - rest.size
        if missing <= 0:
            return rest
        # libswresample swallows sounds that are shorter than its filter (under 2 ms); hold their last sample instead.
        return np.concatenate([rest, np.full(missing, self._last, np.float32)])


def resample(samples: Floats, rate_in: int, rate_out: int) -> Floats:
    """All of ``samples`` (float32 ``[n]``) at another rate: float32 ``[ceil(n * rate_out / rate_in)]``."""
    resampler = Resampler(rate_in, rate_out)
    return np.concatenate([resampler.push(samples), resampler.flush()])


def _join(frames: list[av.AudioFrame]) -> Floats:
    # a plane has the buffer protocol, which its types do not tell of
    pieces = [np.frombuffer(cast(Any, frame.planes[0]), np.float32, frame.samples) for frame in frames]
    if not pieces:
        return np.zeros(0, np.float32)
    joined: Floats = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return joined
