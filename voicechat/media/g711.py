"""G.711: eight bits per sample at 8 kHz, by mu-law (``pcmu``) or A-law (``pcma``). Pure."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import Pcm

G711_RATE = 8000
Law = Literal["pcmu", "pcma"]


def decode(data: bytes, law: Law) -> Pcm:
    """int16 ``[len(data)]`` at 8 kHz."""
    return _expanded(law)[np.frombuffer(data, np.uint8)]


def encode(pcm: Pcm, law: Law) -> bytes:
    """One byte per sample of int16 ``[n]`` at 8 kHz: the code whose value is nearest."""
    return _compressed(law)[pcm.view(np.uint16)].tobytes()


@functools.cache
def _expanded(law: Law) -> Pcm:
    """The value of each of the 256 codes."""
    codes = np.arange(256)
    if law == "pcmu":
        inverted = codes ^ 0xFF
        exponent, mantissa = (inverted >> 4) & 7, inverted & 15
        magnitude = ((2 * mantissa + 33) << exponent) - 33
        negative = inverted & 0x80
        scale = 4  # 14 bits to 16
    else:
        toggled = codes ^ 0x55
        exponent, mantissa = (toggled >> 4) & 7, toggled & 15
        magnitude = np.where(exponent == 0, 2 * mantissa + 1, (2 * mantissa + 33) << np.maximum(exponent - 1, 0))
        negative = (toggled & 0x80) ^ 0x80
        scale = 8  # 13 bits to 16
    return (np.where(negative, -magnitude, magnitude) * scale).astype(np.int16)


@functools.cache
def _compressed(law: Law) -> npt.NDArray[np.uint8]:
    """The code for each of the 65,536 values, by their unsigned bit pattern."""
    expanded = _expanded(law).astype(np.int32)
    order = np.argsort(expanded, kind="stable")
    middles = (expanded[order][1:] + expanded[order][:-1]) / 2
    values = np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)
    return order[np.searchsorted(middles, values)].astype(np.uint8)
