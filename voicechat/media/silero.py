"""Silero VAD: how likely it is that somebody speaks, for every 32 ms of sound.

The model is recurrent, so every microphone has a :class:`SileroStream` of its own over one shared :class:`Silero`. A
window takes about 0.1 ms of one core, less than handing it to a thread and back would cost the event loop.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from voicechat.cascade.api import EARS_RATE, EarsPcm
from voicechat.media.onnx import open_model

WINDOW_SAMPLES = 512
"""32 ms at 16 kHz."""

_CONTEXT_SAMPLES = 64
_STATE_SHAPE = (2, 1, 128)
_RATE = np.array(EARS_RATE, dtype=np.int64)


class Silero:
    """The loaded model. ``path`` is its ONNX file. Raises ValueError if it is another model."""

    def __init__(self, path: Path) -> None:
        self._model = open_model(path, {"input", "state", "sr"})

    def run(self, sound: EarsPcm, state: npt.NDArray[np.float32]) -> tuple[float, npt.NDArray[np.float32]]:
        """Probability for one window with the samples before it (shape ``[576]``), and the next state."""
        probability, after = self._model.run(None, {"input": sound[np.newaxis], "state": state, "sr": _RATE})
        return float(probability[0, 0]), after


class SileroStream:
    """One microphone: takes sound of any length and holds the recurrent state."""

    def __init__(self, silero: Silero) -> None:
        self._silero = silero
        self.reset()

    def reset(self) -> None:
        """Forget everything that was heard."""
        self._state: npt.NDArray[np.float32] = np.zeros(_STATE_SHAPE, np.float32)
        self._sound: EarsPcm = np.zeros(_CONTEXT_SAMPLES, np.float32)  # the context, and what is no whole window yet

    def push(self, sound: EarsPcm) -> float | None:
        """Take more sound (float32 at 16 kHz): the probability of speech in the newest window that it completes."""
        self._sound = np.concatenate([self._sound, sound])
        probability = None
        while len(self._sound) >= _CONTEXT_SAMPLES + WINDOW_SAMPLES:
            window = self._sound[: _CONTEXT_SAMPLES + WINDOW_SAMPLES]
            probability, self._state = self._silero.run(window, self._state)
            self._sound = self._sound[WINDOW_SAMPLES:]
        return probability
