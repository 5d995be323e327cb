"""Smart Turn v3: has the speaker finished, by how it sounded? One probability for the last 8 s of a turn.

The model takes what Whisper's encoder takes: a log-mel spectrogram of 80 bands, 100 frames a second, here of 8 s. A
shorter turn has silence put before it, so that its end is always at the end; then the waveform is normalised.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import EARS_RATE, EarsPcm
from voicechat.media.onnx import open_model

SECONDS = 8
BANDS = 80
FRAMES = 100 * SECONDS

_SAMPLES = SECONDS * EARS_RATE
_FFT = 400
_HOP = 160
_LEAST_POWER = 1e-10
_DECADES = 8.0
"""What is this far below the loudest is all the same to the model."""


class SmartTurn:
    """The loaded model. ``path`` is its ONNX file. Raises ValueError if it is another model."""

    def __init__(self, path: Path) -> None:
        self._model = open_model(path, {"input_features"})

    def finished(self, turn: EarsPcm) -> float:
        """Probability that ``turn`` (float32 mono 16 kHz, its end the newest sample) is complete. Takes about 50 ms of
        one core: not for the event loop."""
        return float(self._model.run(None, {"input_features": features(turn)[np.newaxis]})[0][0, 0])


def features(turn: EarsPcm) -> npt.NDArray[np.float32]:
    """The model's view of the last 8 s of ``turn``: shape ``[80, 800]``. Raises ValueError if it is no plain sound."""
    if turn.ndim != 1:
        raise ValueError(f"a turn has one dimension, not {turn.ndim}")
    sound = np.zeros(_SAMPLES, np.float32)
    if len(turn):
        kept = turn[-_SAMPLES:]
        sound[-len(kept) :] = kept
    sound = (sound - sound.mean()) / np.sqrt(sound.var() + np.float32(1e-7))
    around = np.pad(sound, _FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, _FFT)[::_HOP][:FRAMES]
    spectrum = np.fft.rfft(frames * _WINDOW, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    logs = np.log10(np.maximum(_BANK @ power.T, _LEAST_POWER))
    return ((np.maximum(logs, logs.max() - _DECADES) + 4.0) / 4.0).astype(np.float32)


def _mel_bank() -> npt.NDArray[np.float32]:
    """Triangular bands of equal area on Slaney's mel scale, linear below 1 kHz: shape ``[80, 201]``."""
    step = np.log(6.4) / 27  # of one mel above 1 kHz, where mel 15 is
    top = 15 + np.log(EARS_RATE / 2 / 1000) / step
    mels = np.linspace(0, top, BANDS + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * step))
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    hertz = np.linspace(0, EARS_RATE / 2, _FFT // 2 + 1)
    bands = np.minimum((hertz - lower) / (centre - lower), (upper - hertz) / (upper - centre))
    return (np.maximum(bands, 0) * 2 / (upper - lower)).astype(np.float32)


_BANK = _mel_bank()
_WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FFT) / _FFT)).astype(np.float32)
