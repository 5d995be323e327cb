"""The VoiceBox's sources: a pulse train that follows a pitch, and a noise that is the same wherever it is read from.

A voiced sound is nearly periodic. A net that draws each frame's phases by itself gets that wrong a little in every
frame, which is heard as hoarseness; here the phase is the integral of the pitch (Wang et al., "Neural
source-filter-based waveform model", 2019), and frames agree by construction. Frames are 10 ms apart: frame m lies
around sample ``m * 240 + 120``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SAMPLE_RATE = 24_000
HOP = 240
LOWEST, HIGHEST = 50.0, 600.0
"""Pitches in Hz that a pulse train may have."""
NOISE_HOP, NOISE_WINDOW = 120, 480
NOISE_FRAMES = 2048
"""The noise repeats after so many frames of 5 ms: 10.24 s."""

_TOP = 11_500.0
"""No harmonic lies higher."""
_SMALL = 1e-4


def advance(pitch: Tensor) -> Tensor:
    """Phases of a pulse train at the boundaries of frames, in cycles, from pitches [B, F] in Hz at their middles.

    Returns float64 [B, F + 1]; boundary q lies at sample ``q * 240``, and the phase of the first is 0.
    """
    beside = F.pad(pitch.double(), (1, 1), mode="replicate")
    halves = HOP / SAMPLE_RATE / 8 * (beside[:, :-2] + 6 * pitch.double() + beside[:, 2:])
    return F.pad(torch.cumsum(halves, 1), (1, 0))


def steady_middles(pitch: Tensor) -> Tensor:
    """Phases at the middles of frames, in cycles (float64 [B, F]), that belong to those of :func:`advance`."""
    before = F.pad(pitch.double(), (1, 0), mode="replicate")[:, :-1]
    return advance(pitch)[:, :-1] + HOP / SAMPLE_RATE / 8 * (before + 3 * pitch.double())


def pulses(pitch: Tensor, middles: Tensor) -> Tensor:
    """A band-limited pulse train [B, F * 240] of unit power.

    ``pitch`` [B, F] is in Hz and ``middles`` [B, F] the phase in cycles (any float type, whole cycles do not count),
    both at the middles of frames. Between two middles the phase is the cubic with the pitches as slopes (McAulay and
    Quatieri, 1986) that goes by as many whole cycles as bring it nearest to the mean pitch.
    """
    pitch = F.pad(pitch.float(), (1, 1), mode="replicate")
    slopes = pitch * (HOP / SAMPLE_RATE)
    middles = torch.cat((middles[:, :1] - slopes[:, :1], middles, middles[:, -1:] + slopes[:, -1:]), 1)
    begin, end = slopes[:, :-1], slopes[:, 1:]
    expected = (begin + end) / 2
    rise = torch.frac(middles[:, 1:] - middles[:, :-1] - expected).float()
    rise = expected + rise - torch.round(rise)
    t = torch.arange(HOP, device=pitch.device) / HOP
    first, square, cube = begin, 3 * rise - 2 * begin - end, begin + end - 2 * rise
    offset = torch.frac(middles[:, :-1]).float()
    cycles = offset[..., None] + t * (first[..., None] + t * (square[..., None] + t * cube[..., None]))
    here = (pitch[:, :-1, None] + t * (pitch[:, 1:, None] - pitch[:, :-1, None])).clamp(LOWEST, HIGHEST)
    half = HOP // 2
    cycles, here = (x.flatten(1)[:, half:-half] for x in (cycles, here))
    return _dirichlet(cycles, torch.floor(_TOP / here))


def _dirichlet(cycles: Tensor, harmonics: Tensor) -> Tensor:
    """Sum of ``harmonics`` cosines whose first has this phase, scaled to unit power."""
    angle = torch.pi * (cycles - torch.round(cycles))
    low = torch.sin(angle)
    near = low.abs() < _SMALL
    ratio = torch.sin((2 * harmonics + 1) * angle) / torch.where(near, torch.ones_like(low), low)
    total = 0.5 * (torch.where(near, 2 * harmonics + 1, ratio) - 1)
    return total * torch.sqrt(2 / harmonics)


def frames_of(sound: Tensor, window: Tensor, hop: int) -> Tensor:
    """Complex spectra [B, N / hop, bins] of windowed frames of sound [B, N], the frames' middles half a hop in."""
    size = len(window)
    lead = (size - hop) // 2
    return torch.fft.rfft(F.pad(sound, (lead, lead)).unfold(-1, size, hop) * window, dim=-1)


def overlap_add(spectrum: Tensor, window: Tensor, hop: int) -> Tensor:
    """The inverse of :func:`frames_of`: complex spectra [B, F, bins] to sound [B, F * hop]."""
    size = len(window)
    frames = torch.fft.irfft(spectrum, size, dim=-1) * window
    batch, count, _ = frames.shape
    overlap = size // hop
    frames = frames.view(batch, count, overlap, hop)
    weight = (window**2).view(1, 1, overlap, hop).expand(1, count, overlap, hop)
    sound = torch.zeros(batch, count + overlap - 1, hop, device=spectrum.device)
    norm = torch.zeros(1, count + overlap - 1, hop, device=spectrum.device)
    for k in range(overlap):
        padding = (0, 0, k, overlap - 1 - k)
        sound = sound + F.pad(frames[:, :, k], padding)
        norm = norm + F.pad(weight[:, :, k], padding)
    lead = (size - hop) // 2
    return (sound / norm.clamp(min=1e-3)).flatten(1)[:, lead : lead + count * hop]


def noise_spectra(seed: int = 0) -> Tensor:
    """White noise of unit power as complex spectra [2048, 241] of frames 5 ms apart; the last goes on in the first."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(NOISE_FRAMES * NOISE_HOP, generator=generator)
    around = torch.cat((noise, noise[: NOISE_WINDOW - NOISE_HOP]))
    window = torch.hann_window(NOISE_WINDOW)
    spectra = torch.fft.rfft(around.unfold(0, NOISE_WINDOW, NOISE_HOP) * window, dim=-1)
    return spectra / window.square().sum().sqrt()
