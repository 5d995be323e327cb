"""After the GAN: the decoder's long-term spectrum is brought to the teachers'.

Training against discriminators leaves the decoder a little too quiet, most of all at low frequencies. The difference is
a smooth curve over frequency; it is added to the biases of the log magnitudes, so that it costs nothing in use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from voicechat.models.embedded.voicebox import BINS, VoiceBoxNet

_WINDOW = 960
_HOP = 240
_SMOOTH = 13
"""Bins of 25 Hz that are averaged."""
_MOST = 0.5
"""Largest correction: natural logarithm of magnitude, 4.3 dB."""


def mean_power(sound: Tensor) -> tuple[Tensor, int]:
    """Summed power spectrum [481] of the frames of one sound [N] that are less than 30 dB below its loudest, and how
    many these are."""
    window = torch.hann_window(_WINDOW, device=sound.device)
    power = torch.stft(sound.float(), _WINDOW, _HOP, window=window, return_complex=True).abs().square()
    loud = power.sum(0)
    chosen = power[:, loud > loud.max() * 1e-3]
    return chosen.sum(1), chosen.shape[1]


def spectrum_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Log magnitude [481] that the second sounds of the pairs (each [N]) lack beside the first ones."""
    real, made = torch.zeros(_WINDOW // 2 + 1), torch.zeros(_WINDOW // 2 + 1)
    for wanted, given in pairs:
        power, frames = mean_power(wanted)
        other, _ = mean_power(given)
        real += (power / max(1, frames)).cpu()
        made += (other / max(1, frames)).cpu()
    if not bool(real.any()):
        return real
    difference = 0.5 * torch.log((real + 1e-8) / (made + 1e-8))
    padded = torch.nn.functional.pad(difference[None, None], (_SMOOTH // 2, _SMOOTH // 2), mode="replicate")
    return torch.nn.functional.avg_pool1d(padded, _SMOOTH, 1)[0, 0].clamp(-_MOST, _MOST)


@torch.no_grad()
def add_to_spectrum(decoder: VoiceBoxNet, difference: Tensor) -> None:
    """Add a curve over frequency [481] to all log magnitudes that the decoder makes, of tone and of noise."""
    difference = difference.to(decoder.head.bias)
    decoder.head.bias[:BINS] += difference
    decoder.head.bias[2 * BINS :] += difference[::2].repeat(2)


@torch.no_grad()
def lift_noise(decoder: VoiceBoxNet, decibels: float) -> None:
    """Make the decoder's noise louder, its tone staying as it is."""
    decoder.head.bias[2 * BINS :] += decibels * math.log(10) / 20
