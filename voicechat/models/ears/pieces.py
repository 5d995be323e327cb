"""Sounds in pieces that Whisper can hear."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.float32]

RATE = 16_000
FRAMES_PER_SECOND = 100
WINDOW_SECONDS = 30.0
"""What Whisper was trained on."""
CUT_SECONDS = 20.0
"""A sound that is longer than a window is cut in its quietest place behind this."""
PAUSE_SECONDS = 0.3
_BLOCK = RATE // 50


def cut(pcm: Pcm) -> list[Pcm]:
    """Pieces of at most 30 s, cut in the quietest places."""
    pieces = []
    least, most = int(CUT_SECONDS * RATE), int(WINDOW_SECONDS * RATE)
    while len(pcm) > most:
        power = np.square(pcm[least:most].reshape(-1, _BLOCK)).mean(1)
        pause = int(PAUSE_SECONDS * RATE) // _BLOCK
        quietest = int(np.convolve(power, np.ones(pause), "valid").argmin()) + pause // 2
        pieces.append(pcm[: least + quietest * _BLOCK])
        pcm = pcm[least + quietest * _BLOCK :]
    return [*pieces, pcm]
