"""Sound between the rooms: two types, two rates, one length of a frame."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PCM_RATE = 24_000
"""Sample rate in Hz of every sound that leaves the cascade (int16, mono)."""

EARS_RATE = 16_000
"""Sample rate in Hz of every sound that enters the cascade (float32, mono, [-1, 1])."""

MIN_SPEED, MAX_SPEED = 0.25, 4.0
"""How much slower and faster than it was made speech may be asked for, at the same pitch."""

Pcm = npt.NDArray[np.int16]
EarsPcm = npt.NDArray[np.float32]

FRAME_MS = 20
"""Length of a frame of the microphone in milliseconds."""

FRAME_SAMPLES = EARS_RATE * FRAME_MS // 1000
"""Samples of a frame of the microphone, at :data:`EARS_RATE`."""
