"""The detector's small network, in numpy: two hidden layers over what is around a tile.

Its weights are in ``front.npz`` beside this file; ``python -m voicechat.bench.watermark_train`` makes them anew.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

import numpy as np

from voicechat.watermark.code import Floats

INPUTS = 21 * 6 + 4


@dataclass(frozen=True, slots=True)
class Front:
    """Weights and biases of the layers, float32 ``[outputs, inputs]`` and ``[outputs]``."""

    layers: tuple[tuple[Floats, Floats], ...]

    def __call__(self, seen: Floats) -> Floats:
        """Contrasts ``[…]`` of what is seen ``[INPUTS, …]``."""
        flat = seen.reshape(len(seen), -1)
        for weight, bias in self.layers[:-1]:
            flat = weight @ flat
            flat += bias[:, None]
            np.tanh(flat, out=flat)
        weight, bias = self.layers[-1]
        out: Floats = (weight @ flat + bias[:, None]).reshape(seen.shape[1:])
        return out


@functools.cache
def front() -> Front:
    """The network that comes with the package."""
    with resources.files("voicechat.watermark").joinpath("front.npz").open("rb") as file, np.load(file) as kept:
        count = len(kept.files) // 2
        return Front(tuple((kept[f"weight{n}"], kept[f"bias{n}"]) for n in range(count)))
