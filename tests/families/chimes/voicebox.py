"""The VoiceBox: a sine whose pitch the codes say, gliding to that of the next step; its phase is the state."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence

import numpy as np

from chimes.family import BOOKS, STEP_SAMPLES
from voicechat.contract.family import Decoded
from voicechat.contract.messages import Decode


class Chimes:
    """See :class:`voicechat.contract.family.Decoder`."""

    def shape(self, chunk: Decode) -> Hashable:
        return None  # any chunks go together

    def decode(self, batch: Sequence[Decode]) -> list[Decoded]:
        return [self._decode(chunk) for chunk in batch]

    @staticmethod
    def _decode(chunk: Decode) -> Decoded:
        codes = np.frombuffer(chunk.steps, np.uint8).reshape(-1, BOOKS)
        hertz = 200.0 + 100.0 * chunk.voice + codes @ np.array([16.0, 4.0, 2.0, 1.0])
        following = np.append(hertz[1:], hertz[-1])
        glide = np.arange(STEP_SAMPLES) / STEP_SAMPLES
        pitch = hertz[:, None] + (following - hertz)[:, None] * glide
        pitch = pitch[chunk.left : chunk.left + chunk.emit].reshape(-1)
        (phase,) = struct.unpack("<d", chunk.state) if chunk.state else (0.0,)
        cycles = phase + np.concatenate(([0.0], np.cumsum(pitch))) / 24_000
        sound = np.rint(10_000 * np.sin(2 * np.pi * cycles[:-1])).astype(np.int16)
        return Decoded(sound, struct.pack("<d", cycles[-1] % 1.0))
