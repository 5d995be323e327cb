"""Sound as realtime clients send and want it, piece by piece: pcm16 at 24 kHz, and G.711 at 8 kHz."""

from __future__ import annotations

from typing import Literal

import numpy as np

from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm, Pcm
from voicechat.media import g711
from voicechat.media.resample import Floats, Resampler, resample, to_float, to_pcm

WireFormat = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
_LAWS: dict[str, g711.Law] = {"audio/pcmu": "pcmu", "audio/pcma": "pcma"}


class WireDecoder:
    """Bytes in, float32 mono at 16 kHz out. Pieces may end within a sample."""

    def __init__(self, wire_format: WireFormat) -> None:
        self.format: WireFormat = wire_format
        self._rest = b""
        self._resampler = Resampler(wire_rate(wire_format), EARS_RATE)

    def push(self, data: bytes) -> EarsPcm:
        """The sound that has become certain with ``data``."""
        data = self._rest + data
        whole = len(data) if self.format in _LAWS else len(data) & ~1
        self._rest = data[whole:]
        return self._resampler.push(_samples(data[:whole], self.format))


class WireEncoder:
    """int16 mono at 24 kHz in, bytes out."""

    def __init__(self, wire_format: WireFormat) -> None:
        self._law = _LAWS.get(wire_format)
        self._resampler = Resampler(PCM_RATE, g711.G711_RATE) if self._law else None

    def push(self, pcm: Pcm) -> bytes:
        """The bytes that have become certain with ``pcm``."""
        if self._law is None or self._resampler is None:
            return pcm.astype("<i2").tobytes()
        return g711.encode(to_pcm(self._resampler.push(to_float(pcm))), self._law)

    def flush(self) -> bytes:
        """The rest."""
        if self._law is None or self._resampler is None:
            return b""
        return g711.encode(to_pcm(self._resampler.flush()), self._law)


def wire_rate(wire_format: WireFormat) -> int:
    """Samples per second of a format."""
    return g711.G711_RATE if wire_format in _LAWS else PCM_RATE


def decode_whole(data: bytes, wire_format: WireFormat, rate: int) -> Floats:
    """All of ``data`` as float32 mono at ``rate``."""
    return resample(_samples(data, wire_format), wire_rate(wire_format), rate)


def _samples(data: bytes, wire_format: WireFormat) -> Floats:
    law = _LAWS.get(wire_format)
    pcm = np.frombuffer(data, "<i2").astype(np.int16) if law is None else g711.decode(data, law)
    return to_float(pcm)
