"""The embedded family's ears: Whisper through faster-whisper, for Thinkers that cannot hear by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from faster_whisper import WhisperModel


class Ears:
    """Speech to text. ``folder`` holds a CTranslate2 Whisper model; ``threads`` and ``beam_size`` as in faster-whisper."""

    def __init__(self, folder: str, *, threads: int, beam_size: int) -> None:
        from faster_whisper import WhisperModel

        self._model: WhisperModel = WhisperModel(
            folder, device="cpu", compute_type="int8", cpu_threads=threads, local_files_only=True
        )
        self._beam_size = beam_size

    def warm_up(self) -> None:
        """Run once on noise, so that the first real question meets warm code."""
        self.transcribe(np.random.default_rng(0).normal(0, 0.01, 16_000).astype(np.float32))

    def transcribe(self, pcm: npt.NDArray[np.float32]) -> str:
        """Text of float32 mono 16 kHz sound, shape ``[samples]``; empty for silence."""
        segments, _ = self._model.transcribe(
            pcm,
            language="en",
            beam_size=self._beam_size,
            without_timestamps=True,
            condition_on_previous_text=False,
            temperature=0.0,
        )
        return " ".join(segment.text.strip() for segment in segments if segment.no_speech_prob < 0.9).strip()
