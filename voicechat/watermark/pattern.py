"""Where the mark lies: tiles of time and frequency, each with a secret sign, and with a symbol of the payload or none.

Time is cut into rows of :data:`ROW_MS`, the band from 250 Hz to 6,850 Hz into :data:`BANDS`; one row of one band is a
*tile*. A tile is made a little louder or a little softer. The pattern repeats after :data:`ROWS` rows. A third of the
tiles is the pilot, which is found first; the others carry the payload's signs, each of them many times in any two
seconds. What lies where is public; the signs come from the key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voicechat.watermark.code import SYMBOLS, Floats, encode
from voicechat.watermark.keys import Key

ROW_MS = 20
ROWS = 128
LOWEST_HZ, BAND_HZ, BANDS = 250, 150, 44
PILOT = -1
"""In :func:`layout`: the tile carries no symbol."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The signs of a key, float32 ``[ROWS, BANDS]``, and what each tile carries, int ``[ROWS, BANDS]``."""

    signs: Floats
    symbols: npt.NDArray[np.int64]

    @classmethod
    def of(cls, key: Key) -> Pattern:
        """The pattern of a key."""
        count = ROWS * BANDS
        bits = np.unpackbits(np.frombuffer(key.derive("signs", -(-count // 8)), np.uint8))[:count]
        signs = (1.0 - 2.0 * bits.astype(np.float32)).reshape(ROWS, BANDS)
        return cls(signs, layout())

    def marked(self, payload: int) -> Floats:
        """The sign of every tile once it carries ``payload``, float32 ``[ROWS, BANDS]``."""
        word = np.append(encode(payload), np.float32(1.0))  # the last one is the pilot's
        marked: Floats = self.signs * word[self.symbols]
        return marked


def layout() -> npt.NDArray[np.int64]:
    """What each tile carries: a symbol's number, or :data:`PILOT`. The same for every key."""
    rows, bands = np.meshgrid(np.arange(ROWS), np.arange(BANDS), indexing="ij")
    carried = np.full((ROWS, BANDS), PILOT, np.int64)
    data = (rows + bands) % 3 != 0
    count = int(data.sum())
    blocks = [_shuffled(number) for number in range(-(-count // SYMBOLS))]
    carried[data] = np.concatenate(blocks)[:count]
    return carried


def band_weights(rate: float, size: int, scale: float = 1.0, *, halves: bool = False) -> Floats:
    """How much each bin of a real FFT of ``size`` samples at ``rate`` Hz is of each band: float32 ``[bins, BANDS]``.

    ``scale`` is by how much all frequencies have risen. With ``halves``: of each half of a band, ``[bins, 2 * BANDS]``.
    """
    width, count = (BAND_HZ / 2, 2 * BANDS) if halves else (BAND_HZ, BANDS)
    step = rate / size
    centres = np.arange(size // 2 + 1) * step
    low = (LOWEST_HZ + width * np.arange(count)) * scale
    high = low + width * scale
    inside = np.minimum(centres[:, None] + step / 2, high) - np.maximum(centres[:, None] - step / 2, low)
    weights: Floats = np.clip(inside / step, 0.0, 1.0).astype(np.float32)
    return weights


def _shuffled(number: int) -> list[int]:
    """All symbols in an order that is fixed for a block."""
    digest = hashlib.shake_128(b"voicechat watermark layout %d" % number).digest(4 * SYMBOLS)
    return np.argsort(np.frombuffer(digest, "<u4"), kind="stable").tolist()
