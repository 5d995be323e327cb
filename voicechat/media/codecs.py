"""What calls are coded with, behind one face: Opus, and G.711 for those who come from the telephone."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm, Pcm
from voicechat.media import g711
from voicechat.media.g711 import G711_RATE, Law
from voicechat.media.opus import OpusDecoder, OpusEncoder, OpusError
from voicechat.media.resample import Resampler, to_float, to_pcm

OPUS_CLOCK = 48_000
"""Hz of Opus's timestamps, whatever it codes (RFC 7587 section 4.1)."""

VoiceError = OpusError
"""A packet is not what it should be."""

_KEPT = G711_RATE * 60 // 1000
_SHORTEST, _LONGEST = G711_RATE // 400, G711_RATE * 15 // 1000
"""Samples of a voice's period: 400 to 67 Hz."""


class VoiceEncoder(Protocol):
    """Codes int16 sound of 24 kHz, 20 ms (480 samples) at a time."""

    def encode(self, pcm: Pcm) -> bytes:
        """One packet's payload."""

    def adapt(self, bitrate: int, expected_loss: int) -> None:
        """What the network is like: bits per second that it takes, percent that it loses."""


class VoiceDecoder(Protocol):
    """Decodes to float32 sound of 16 kHz. :class:`VoiceError` is raised for a payload that is none."""

    @property
    def clock(self) -> int:
        """Hz of its timestamps."""

    def duration(self, payload: bytes) -> int:
        """How long a payload's sound is, in units of the clock."""

    def decode(self, payload: bytes) -> EarsPcm:
        """Its sound."""

    def conceal(self, samples: int) -> EarsPcm:
        """Plausible sound in place of what was lost; ``samples`` is a multiple of 2.5 ms."""

    def repair(self, following: bytes, samples: int) -> EarsPcm:
        """What was lost before ``following``, from what that tells of it, else as :meth:`conceal`."""


class OpusVoice:
    """Opus with the timestamps of RTP."""

    clock = OPUS_CLOCK

    def __init__(self) -> None:
        self._decoder = OpusDecoder()
        self.decode = self._decoder.decode
        self.conceal = self._decoder.conceal
        self.repair = self._decoder.repair

    def duration(self, payload: bytes) -> int:
        """Of the packet, at 48 kHz."""
        return self._decoder.samples(payload) * (OPUS_CLOCK // EARS_RATE)


class G711Encoder:
    """8 kHz, one byte per sample. There is nothing to adapt."""

    def __init__(self, law: Law) -> None:
        self._law = law
        self._resampler = Resampler(PCM_RATE, G711_RATE)
        self._rest = np.zeros(0, np.float32)

    def encode(self, pcm: Pcm) -> bytes:
        """160 bytes for 480 samples; the filter delays the sound by up to 20 ms, once."""
        self._rest = np.concatenate([self._rest, self._resampler.push(to_float(pcm))])
        wanted = len(pcm) * G711_RATE // PCM_RATE
        missing = wanted - len(self._rest)
        if missing > 0:  # the first packet: the filter is still filling
            self._rest = np.concatenate([np.zeros(missing, np.float32), self._rest])
        part, self._rest = self._rest[:wanted], self._rest[wanted:]
        return g711.encode(to_pcm(part), self._law)

    def adapt(self, bitrate: int, expected_loss: int) -> None:
        """It is always 64 kb/s."""


class G711Voice:
    """G.711 with concealment by the last period of the voice, fading, as in G.711 appendix I."""

    clock = G711_RATE

    def __init__(self, law: Law) -> None:
        self._law = law
        self._resampler = Resampler(G711_RATE, EARS_RATE)
        self._past = np.zeros(_KEPT, np.float32)
        self._period = np.zeros(0, np.float32)
        self._concealed = 0

    def duration(self, payload: bytes) -> int:
        """One unit per byte. Raises :class:`VoiceError` for a payload that is empty or longer than 200 ms."""
        if not 0 < len(payload) <= G711_RATE // 5:
            raise VoiceError(f"G.711 payload of {len(payload)} bytes")
        return len(payload)

    def decode(self, payload: bytes) -> EarsPcm:
        """Its sound; a few samples of the first packet come with the second."""
        self.duration(payload)
        self._concealed = 0
        return self._out(to_float(g711.decode(payload, self._law)))

    def conceal(self, samples: int) -> EarsPcm:
        """The voice's last period again and again, ever softer, gone after 60 ms."""
        count = samples * G711_RATE // EARS_RATE
        if not self._concealed:
            self._period = self._past[-self._likest() :]
        moments = self._concealed + np.arange(count)
        self._concealed += count
        sound = self._period[moments % len(self._period)] * np.clip(1.0 - moments / _KEPT, 0.0, 1.0)
        return self._out(sound.astype(np.float32))

    def repair(self, following: bytes, samples: int) -> EarsPcm:
        """Concealed: G.711 carries nothing for repair."""
        return self.conceal(samples)

    def _out(self, sound: EarsPcm) -> EarsPcm:
        self._past = np.concatenate([self._past, sound])[-_KEPT:]
        return self._resampler.push(sound)

    def _likest(self) -> int:
        """Samples after which the past is most like itself."""
        recent = self._past[-_LONGEST:]
        shifts = range(_SHORTEST, _LONGEST + 1)
        scores = [float(recent @ self._past[-_LONGEST - shift : -shift]) for shift in shifts]
        energies = [float(np.sum(self._past[-_LONGEST - shift : -shift] ** 2)) + 1e-9 for shift in shifts]
        return shifts[int(np.argmax(np.array(scores) / np.sqrt(energies)))]


def encoder(name: str, bitrate: int) -> VoiceEncoder:
    """For what :mod:`voicechat.media.sdp` calls ``name``."""
    if name == "opus":
        return OpusEncoder(bitrate=bitrate)
    return G711Encoder("pcmu" if name == "pcmu" else "pcma")


def decoder(name: str) -> VoiceDecoder:
    """For what :mod:`voicechat.media.sdp` calls ``name``."""
    return OpusVoice() if name == "opus" else G711Voice("pcmu" if name == "pcmu" else "pcma")
