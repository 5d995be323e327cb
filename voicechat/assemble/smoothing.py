"""Smoothing: moving the outliers of activations into the weights before both become int8 (Xiao et al., SmoothQuant).

An input channel ``j`` of a group of linear layers is multiplied by ``s[j]`` in their weights and divided by it where it
is made: in the norm before them, or in the rows of the layer before. The model computes the same; its activations are
easier to round. The factors come with the package, a small file per Thinker, made by ``voicechat.assemble.calibrate``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float32]

FOLDER = Path(__file__).parent / "factors"

_ZERO, _STEPS_PER_OCTAVE = 128, 16
_NAME = re.compile(r"model\.layers\.(\d+)\.(?:self_attn\.|mlp\.)?(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, eq=False)
class Smoothing:
    """Factors of every layer's inputs: attention and MLP ``[layers, width]``, ``down_proj`` ``[layers, inner]``."""

    attention: Floats
    mlp: Floats
    down: Floats

    def apply(self, name: str, values: Tensor) -> Tensor:
        """The float32 tensor of this Hugging Face name with its factors."""
        divide, multiply = self._factors(name)
        if divide is not None:
            rows = values.new_tensor(divide)
            values = values / (rows if values.ndim == 1 else rows[:, None])
        return values if multiply is None else values * values.new_tensor(multiply)

    def _factors(self, name: str) -> tuple[Floats | None, Floats | None]:
        """What the tensor's rows are divided by, and what its columns are multiplied by."""
        found = _NAME.fullmatch(name)
        if not found or found[3] == "bias":
            return None, None
        layer, part = int(found[1]), found[2]
        match part:
            case "input_layernorm":
                return self.attention[layer], None
            case "post_attention_layernorm":
                return self.mlp[layer], None
            case "q_proj" | "k_proj" | "v_proj":
                return None, self.attention[layer]
            case "gate_proj":
                return None, self.mlp[layer]
            case "up_proj":
                return self.down[layer], self.mlp[layer]
            case "down_proj":
                return None, self.down[layer]
        return None, None


def balance(largest: Floats, usual: Floats, weights: Floats, strength: float = 0.6) -> Floats:
    """The factors ``[inputs]`` of one group.

    ``largest``: each input's largest magnitude over all tokens. ``usual``: its root mean square, each token first
    divided by its own largest input. ``weights``: the largest magnitude of its column in the group's weights.
    """
    activations = np.sqrt(np.maximum(largest, 1e-5) * np.maximum(usual, 1e-5))
    factors = activations**strength / np.maximum(weights, 1e-5) ** (1 - strength)
    centred = factors / np.exp(np.log(factors).mean())
    return np.clip(centred, 1 / 32, 32).astype(np.float32)


def load(name: str) -> Smoothing | None:
    """The factors that come with the package for a Thinker of this name, or None."""
    path = FOLDER / f"{name}.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        return Smoothing(*(_decode(file[key]) for key in ("attention", "mlp", "down")))


def save(path: Path, smoothing: Smoothing) -> None:
    """Write factors, one byte each: sixteenths of an octave."""
    attention, mlp, down = (_encode(factors) for factors in (smoothing.attention, smoothing.mlp, smoothing.down))
    with path.open("wb") as file:
        np.savez_compressed(file, attention=attention, mlp=mlp, down=down)


def _encode(factors: Floats) -> npt.NDArray[np.uint8]:
    return np.clip(np.rint(np.log2(factors) * _STEPS_PER_OCTAVE) + _ZERO, 0, 255).astype(np.uint8)


def _decode(codes: npt.NDArray[np.uint8]) -> Floats:
    return np.exp2((codes.astype(np.float32) - _ZERO) / _STEPS_PER_OCTAVE).astype(np.float32)
