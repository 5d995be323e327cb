"""The payload's error-correcting code: BCH (63, 16, 23) with a parity bit, that is 64 signs for 16 bits.

Any two words differ in at least 24 of the 64 signs. Words are read with soft decisions, the nearest of all 65,536, and
the next to it: how far they lie apart is the check on the first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAYLOAD_BITS = 16
SYMBOLS = 64
RADIUS = 11
"""Wrong signs, of the 64, up to which the nearest word can only be the one that was sent."""

_GENERATOR = 0o6331141367235453
"""Generator polynomial of BCH (63, 16), t = 11 (Lin and Costello, Error Control Coding, appendix C)."""

AT_ONCE = 4
"""Words read at a time: what is between fits into a core's cache."""

Floats = npt.NDArray[np.float32]


def encode(payload: int) -> Floats:
    """The 64 signs, +1 or -1, of a payload in [0, 65536)."""
    if not 0 <= payload < 1 << PAYLOAD_BITS:
        raise ValueError(f"a payload is a number of {PAYLOAD_BITS} bits, from 0 to 65535, not {payload}")
    return signs_of(np.array([payload]))[0]


def signs_of(payloads: npt.NDArray[np.int64]) -> Floats:
    """The words of some payloads, float32 ``[n, 64]`` of +1 and -1."""
    bits = (payloads[:, None] >> np.arange(PAYLOAD_BITS)) & 1
    signs: Floats = (1 - 2 * ((bits @ _basis()) & 1)).astype(np.float32)
    return signs


def nearest(soft: Floats) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """The best word for each of ``soft`` (float32 ``[n, 64]``, positive for +1).

    Returns the payloads, their correlations, and those of the second best.
    """
    found = [_nearest(soft[first : first + AT_ONCE]) for first in range(0, len(soft), AT_ONCE)]
    payloads, best, second = (np.concatenate(part) for part in zip(*found, strict=True))
    return payloads, best, second


def _nearest(soft: Floats) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    cosets, each = _cosets(), np.arange(len(soft))
    seen = (soft[:, None, cosets.order] * cosets.signs).reshape(-1, SYMBOLS) @ cosets.walsh
    seen = seen.reshape(len(soft), -1)
    size = np.abs(seen)
    best = size.argmax(1)
    first = size[each, best]
    size[each, best] = 0
    coset, function = np.divmod(best, SYMBOLS)
    payloads = cosets.payloads[coset] ^ cosets.functions[function] ^ np.where(seen[each, best] < 0, cosets.negative, 0)
    return payloads, first, size.max(1)


@dataclass(frozen=True, slots=True)
class _Cosets:
    """The code as 512 cosets of the first-order Reed-Muller code that lies in it (MacWilliams and Sloane, chapter 13).

    In the order ``order`` its words are the 64 Walsh functions and their negatives, so that a word is read by a product
    with ``walsh``, float32 ``[64, 64]``, for each of the cosets' ``signs``, ``[512, 64]`` in that order. The payloads
    of all of them add up (modulo 2): ``payloads`` of the cosets, ``functions``, ``negative``.
    """

    order: npt.NDArray[np.int64]
    signs: Floats
    walsh: Floats
    payloads: npt.NDArray[np.int64]
    functions: npt.NDArray[np.int64]
    negative: int


@functools.cache
def _cosets() -> _Cosets:
    # the m-sequence of x^6 + x + 1, the polynomial that the code was made from: six of its bits name a place
    bits = [0, 0, 0, 0, 0, 1]
    while len(bits) < SYMBOLS - 1 + 5:
        bits.append(bits[-5] ^ bits[-6])
    places = [sum(bits[at + n] << n for n in range(6)) for at in range(SYMBOLS - 1)]
    order = np.argsort([*places, 0])  # the parity bit's is the zero
    numbers = np.arange(SYMBOLS)
    common = numbers[:, None] & numbers
    ones = ((common[:, :, None] >> np.arange(6)) & 1).sum(2) & 1
    walsh = (1 - 2 * ones).astype(np.float32)
    functions = _payloads(ones[:, np.argsort(order)])
    (negative,) = _payloads(np.ones((1, SYMBOLS), np.int64))
    free = _free([int(one) for one in (*functions[1 << np.arange(6)], negative)])
    chosen = np.arange(1 << len(free))
    payloads = ((chosen[:, None] >> np.arange(len(free))) & 1) @ (1 << np.array(free))
    return _Cosets(order, signs_of(payloads)[:, order], walsh, payloads, functions, int(negative))


def _payloads(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Payloads of words of bits ``[n, 64]``: they stand in the word as they are, before the parity."""
    payloads: npt.NDArray[np.int64] = words[:, -1 - PAYLOAD_BITS : -1] @ (1 << np.arange(PAYLOAD_BITS))
    return payloads


def _free(payloads: list[int]) -> list[int]:
    """Bits that, each alone, make a basis of all payloads together with those given."""
    led: set[int] = set()
    while payloads:
        one = payloads.pop()
        if one:
            lead = one.bit_length() - 1
            led.add(lead)
            payloads = [other ^ one if other >> lead & 1 else other for other in payloads]
    return [bit for bit in range(PAYLOAD_BITS) if bit not in led]


@functools.cache
def _basis() -> npt.NDArray[np.int64]:
    return np.array([_word(1 << bit) for bit in range(PAYLOAD_BITS)])


def _word(message: int) -> list[int]:
    """Systematic word of a message, with its parity, lowest degree first."""
    shift = _GENERATOR.bit_length() - 1
    rest = message << shift
    while rest.bit_length() > shift:
        rest ^= _GENERATOR << (rest.bit_length() - 1 - shift)
    word = (message << shift) | rest
    bits = [(word >> place) & 1 for place in range(SYMBOLS - 1)]
    return [*bits, sum(bits) & 1]
