"""WAV containers of 16-bit mono PCM, written without a library because they are 44 bytes of header."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]

HEADER_BYTES = 44
UNKNOWN_LENGTH = 0xFFFF_FFFF
"""Size fields of a WAV whose length is not known when its header is sent, as other streaming writers put it."""


def wav_header(samples: int | None, rate: int) -> bytes:
    """The 44 bytes before ``samples`` int16 mono samples at ``rate`` Hz; ``None`` when the count is not known yet."""
    data = UNKNOWN_LENGTH if samples is None else samples * 2
    if samples is not None and data > UNKNOWN_LENGTH - HEADER_BYTES:
        raise ValueError(f"{samples} samples don't fit a WAV file")
    riff = UNKNOWN_LENGTH if samples is None else data + HEADER_BYTES - 8
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16, b"data", data
    )


def pcm_bytes(pcm: Pcm) -> bytes:
    """int16 ``[n]`` as little-endian bytes."""
    if pcm.ndim != 1 or pcm.dtype != np.int16:
        raise ValueError(f"pcm must be int16 [n], not {pcm.dtype} {list(pcm.shape)}")
    return pcm.astype("<i2", copy=False).tobytes()


def encode_wav(pcm: Pcm, rate: int) -> bytes:
    """int16 mono ``[n]`` at ``rate`` Hz as a whole WAV file."""
    return wav_header(pcm.size, rate) + pcm_bytes(pcm)
