"""Opus by way of libopus: a mono voice encoder with in-band FEC, and a decoder that conceals and repairs losses.

libopus converts rates and channels itself: whatever the sender codes (48 kHz, stereo), the decoder gives mono sound at
the rate it was made for, so no stream can ever be read with the wrong number of channels, and no resampler is needed.
The library is the one that the PyAV wheel carries, else the system's.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm, Pcm

FRAME_MS = 20
"""Length in milliseconds of every packet that is sent."""

FRAME_SAMPLES = PCM_RATE * FRAME_MS // 1000

MAX_PACKET_BYTES = 1275
MAX_PACKET_MS = 120

_OK = 0
_APPLICATION_VOIP = 2048
_SIGNAL_VOICE = 3001
_SET_BITRATE = 4002
_SET_COMPLEXITY = 4010
_SET_INBAND_FEC = 4012
_SET_PACKET_LOSS_PERC = 4014
_SET_SIGNAL = 4024


class OpusError(Exception):
    """libopus is missing, or refused a packet."""


class OpusEncoder:
    """Encodes int16 mono sound at :data:`PCM_RATE`, one packet per :data:`FRAME_MS`, for speech.

    ``expected_loss`` is in percent: more of it spends more of the bits on repairing lost packets.
    """

    def __init__(self, *, bitrate: int = 32_000, expected_loss: int = 5, complexity: int = 5) -> None:
        self._lib = _library()
        error = ctypes.c_int()
        self._state = self._lib.opus_encoder_create(PCM_RATE, 1, _APPLICATION_VOIP, ctypes.byref(error))
        self._check(error.value)
        for request, value in (
            (_SET_BITRATE, bitrate),
            (_SET_COMPLEXITY, complexity),
            (_SET_SIGNAL, _SIGNAL_VOICE),
            (_SET_INBAND_FEC, 1),
            (_SET_PACKET_LOSS_PERC, expected_loss),
        ):
            self._check(self._lib.opus_encoder_ctl(self._state, request, ctypes.c_int(value)))
        self._out = ctypes.create_string_buffer(MAX_PACKET_BYTES)

    def adapt(self, bitrate: int, expected_loss: int) -> None:
        """From the next packet on; ``bitrate`` in bits per second, ``expected_loss`` in percent."""
        for request, value in ((_SET_BITRATE, bitrate), (_SET_PACKET_LOSS_PERC, expected_loss)):
            self._check(self._lib.opus_encoder_ctl(self._state, request, ctypes.c_int(value)))

    def encode(self, pcm: Pcm) -> bytes:
        """One packet. ``pcm`` is int16, shape ``[480]``; raises :class:`OpusError` for any other length."""
        if pcm.shape != (FRAME_SAMPLES,):
            raise OpusError(f"an Opus frame of {FRAME_MS} ms has {FRAME_SAMPLES} samples, not {pcm.shape}")
        pcm = np.ascontiguousarray(pcm, dtype=np.int16)
        size = self._lib.opus_encode(self._state, pcm.ctypes.data, len(pcm), self._out, MAX_PACKET_BYTES)
        self._check(size)
        return self._out.raw[:size]

    def _check(self, code: int) -> None:
        if code < _OK:
            raise OpusError(f"libopus encoder: {self._lib.opus_strerror(code).decode()}")

    def __del__(self) -> None:
        if state := self.__dict__.get("_state"):
            self._lib.opus_encoder_destroy(state)


class OpusDecoder:
    """Decodes Opus packets of any kind to float32 mono sound at :data:`EARS_RATE`."""

    def __init__(self) -> None:
        self._lib = _library()
        error = ctypes.c_int()
        self._state = self._lib.opus_decoder_create(EARS_RATE, 1, ctypes.byref(error))
        self._check(error.value)
        self._out: npt.NDArray[np.float32] = np.zeros(EARS_RATE * MAX_PACKET_MS // 1000, dtype=np.float32)

    def samples(self, packet: bytes) -> int:
        """How many samples ``packet`` decodes to. Raises :class:`OpusError` if it is no Opus packet."""
        count = int(self._lib.opus_decoder_get_nb_samples(self._state, packet, len(packet)))
        self._check(count)
        return count

    def decode(self, packet: bytes) -> EarsPcm:
        """The sound of ``packet``, shape ``[samples]``. Raises :class:`OpusError` if it is no Opus packet."""
        return self._decode(packet, len(self._out), fec=False)

    def conceal(self, samples: int) -> EarsPcm:
        """Plausible sound in place of a lost packet of ``samples`` samples (a multiple of 2.5 ms, at most 120 ms)."""
        return self._decode(None, samples, fec=False)

    def repair(self, following: bytes, samples: int) -> EarsPcm:
        """Sound of a lost packet, from the repair data of the packet that came after it (else concealment)."""
        return self._decode(following, samples, fec=True)

    def _decode(self, packet: bytes | None, samples: int, *, fec: bool) -> EarsPcm:
        size = 0 if packet is None else len(packet)
        if packet is not None and not packet:
            raise OpusError("libopus decoder: empty packet")
        count = self._lib.opus_decode_float(self._state, packet, size, self._out.ctypes.data, samples, int(fec))
        self._check(count)
        return self._out[:count].copy()

    def _check(self, code: int) -> None:
        if code < _OK:
            raise OpusError(f"libopus decoder: {self._lib.opus_strerror(code).decode()}")

    def __del__(self) -> None:
        if state := self.__dict__.get("_state"):
            self._lib.opus_decoder_destroy(state)


@functools.cache
def _library() -> ctypes.CDLL:
    """libopus, with its functions typed. Raises :class:`OpusError` if it can't be found."""
    package = Path(av.__file__).parent
    bundled = [*package.parent.glob("av.libs/*opus*"), *package.glob(".dylibs/libopus*")]
    names = [str(path) for path in sorted(bundled)] + [name for name in [ctypes.util.find_library("opus")] if name]
    for name in names:
        try:
            lib = ctypes.CDLL(name)
        except OSError:
            continue
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        _declare(lib, "opus_strerror", ctypes.c_char_p, integer)
        _declare(lib, "opus_encoder_create", pointer, integer, integer, integer, pointer)
        _declare(lib, "opus_encoder_ctl", integer, pointer, integer)  # the value is a variadic argument
        _declare(lib, "opus_encode", integer, pointer, pointer, integer, ctypes.c_char_p, integer)
        _declare(lib, "opus_encoder_destroy", None, pointer)
        _declare(lib, "opus_decoder_create", pointer, integer, integer, pointer)
        _declare(lib, "opus_decoder_get_nb_samples", integer, pointer, ctypes.c_char_p, integer)
        _declare(lib, "opus_decode_float", integer, pointer, ctypes.c_char_p, integer, pointer, integer, integer)
        _declare(lib, "opus_decoder_destroy", None, pointer)
        return lib
    raise OpusError("libopus was not found: install PyAV's wheel (pip install av) or the system's libopus")


def _declare(lib: ctypes.CDLL, name: str, result: object, *arguments: object) -> None:
    function = getattr(lib, name)
    function.restype = result
    function.argtypes = arguments
