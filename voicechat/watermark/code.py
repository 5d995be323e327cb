"""The payload's error-correcting code: BCH (63, 16, 23) with a parity bit, that is 64 signs for 16 bits.

Any two words differ in at least 24 of the 64 signs. Words are read with soft decisions, the nearest of all 65,536, and
the next to it: how far they lie apart is the check on the first.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

PAYLOAD_BITS = 16
SYMBOLS = 64
RADIUS = 11
"""Wrong signs, of the 64, up to which the nearest word can only be the one that was sent."""

_GENERATOR = 0o6331141367235453
"""Generator polynomial of BCH (63, 16), t = 11 (Lin and Costello, Error Control Coding, appendix C)."""

Floats = npt.NDArray[np.float32]


def encode(payload: int) -> Floats:
    """The 64 signs, +1 or -1, of a payload in [0, 65536)."""
    if not 0 <= payload < 1 << PAYLOAD_BITS:
        raise ValueError(f"a payload is a number of {PAYLOAD_BITS} bits, from 0 to 65535, not {payload}")
    return codebook()[payload]


@functools.cache
def codebook() -> Floats:
    """The words of all payloads, float32 ``[65536, 64]`` of +1 and -1."""
    basis = np.array([_word(1 << bit) for bit in range(PAYLOAD_BITS)], np.uint8)
    messages = np.arange(1 << PAYLOAD_BITS, dtype=np.uint32)[:, None]
    bits = ((messages >> np.arange(PAYLOAD_BITS, dtype=np.uint32)) & 1).astype(np.uint8)
    words = (bits.astype(np.float32) @ basis.astype(np.float32)).astype(np.int32) & 1
    signs: Floats = (1 - 2 * words).astype(np.float32)
    signs.setflags(write=False)
    return signs


def nearest(soft: Floats) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """The best word for each of ``soft`` (float32 ``[n, 64]``, positive for +1).

    Returns the payloads, their correlations, and those of the second best.
    """
    scores = soft @ codebook().T
    each = np.arange(len(soft))
    best = scores.argmax(1)
    first = scores[each, best]
    scores[each, best] = -np.inf
    return best, first, scores.max(1)


def _word(message: int) -> list[int]:
    """Systematic word of a message, with its parity, lowest degree first."""
    shift = _GENERATOR.bit_length() - 1
    rest = message << shift
    while rest.bit_length() > shift:
        rest ^= _GENERATOR << (rest.bit_length() - 1 - shift)
    word = (message << shift) | rest
    bits = [(word >> place) & 1 for place in range(SYMBOLS - 1)]
    return [*bits, sum(bits) & 1]
