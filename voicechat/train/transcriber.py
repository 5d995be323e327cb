"""A transcriber of what was made: faster-whisper, on sounds of any length."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voicechat.media.resample import resample, to_float

Pcm = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float32]

RATE, LOW_RATE = 24_000, 16_000
_PAUSE, _QUIET = 15, 1e-4
"""Between phrases: so many blocks of 10 ms with less than this part of the loudest one's power (-40 dB)."""
_LEAST_PHRASE = RATE // 5


class Transcriber:
    """Whisper, in pieces that are well inside its window."""

    def __init__(self, folder: Path) -> None:
        """``folder``: a faster-whisper (CTranslate2) model."""
        self._folder = folder
        self._model: Any = None

    def __call__(self, pcm: Pcm, low: Floats | None = None) -> str:
        """The text of a sound."""
        return self._hear(pieces(pcm))

    def by_phrases(self, pcm: Pcm, low: Floats) -> str:
        """The same, every phrase by itself: so it can't leave out or repeat one for another's sake."""
        return self._hear(phrases(pcm))

    def _hear(self, sounds: list[Pcm]) -> str:
        if self._model is None:
            from faster_whisper import WhisperModel

            logging.getLogger("faster_whisper").setLevel(logging.WARNING)
            self._model = WhisperModel(str(self._folder), device="cpu", compute_type="int8", cpu_threads=1)
        heard = []
        for piece in sounds:
            segments, _ = self._model.transcribe(
                resample(to_float(piece), RATE, LOW_RATE),
                beam_size=5,
                language="en",
                condition_on_previous_text=False,
                without_timestamps=True,
            )
            heard += [segment.text.strip() for segment in segments]
        return " ".join(heard)


def pieces(sound: Pcm, longest: float = 14.0) -> list[Pcm]:
    """Cut long sound at its quietest places: a transcriber's window is 30 s, and it is surest well below."""
    out = []
    hop = RATE // 20
    while len(sound) > longest * RATE:
        level = np.abs(sound[: int(longest * RATE)].astype(np.float32)).reshape(-1, hop).mean(1)
        smooth = np.convolve(level, np.ones(5), mode="same")
        first = len(smooth) // 3
        cut = (first + int(smooth[first:-3].argmin())) * hop + hop // 2
        out.append(sound[:cut])
        sound = sound[cut:]
    return [*out, sound]


def phrases(pcm: Pcm) -> list[Pcm]:
    """Cut a sound in the middle of its pauses of 150 ms and more; what is shorter than 0.2 s is left out."""
    hop = RATE // 100
    power = np.square(pcm[: len(pcm) // hop * hop].astype(np.float64)).reshape(-1, hop).mean(1)
    quiet = np.concatenate(([False], power < power.max(initial=0.0) * _QUIET, [False]))
    turns = np.flatnonzero(quiet[1:] != quiet[:-1]).reshape(-1, 2)
    cuts = [int(first + end) // 2 * hop for first, end in turns.tolist() if end - first >= _PAUSE]
    return [piece for piece in np.split(pcm, cuts) if len(piece) >= _LEAST_PHRASE]
