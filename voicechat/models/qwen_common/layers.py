"""What the small transformers around Qwen-Omni's Talkers share: norms, and positions as rotations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """Root mean square norm over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] to the same."""
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


def turns(places: Tensor, size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., size] of the rotations at ``places`` (long [...]) (RoPE, Su et al. 2021, in halves)."""
    half = size // 2
    speeds = theta ** -(torch.arange(half, device=places.device, dtype=torch.float) / half)
    angles = places[..., None].float() * speeds
    cosine, sine = (torch.cat((part, part), -1).to(dtype) for part in (angles.cos(), angles.sin()))
    return cosine, sine


def turn(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate [..., size] by what :func:`turns` gives."""
    first, second = x.chunk(2, -1)
    return x * by[0] + torch.cat((-second, first), -1) * by[1]
