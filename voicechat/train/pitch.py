"""The pitch of speech and the phase of its fundamental, by which the decoder learns in step with what it is to make.

The decoder's pulse train runs freely in use. In training it is put where the teacher's own periods lie, so that its
sound can be compared with the teacher's wave by wave and not only by magnitudes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from voicechat.models.embedded.source import HOP, SAMPLE_RATE

_SUM = 960
_LAGS = (48, 400)
"""Periods that are looked for, in samples: 500 to 60 Hz."""
_USUAL_LAG = 160
"""What is compared at this lag lies evenly about the frame's middle, at others up to 5 ms (60 Hz) beside it."""
_SIZE = 2048
_SMOOTH = 25
"""Taps of the low pass (about 1 kHz) before periods are looked for."""
_SLACK = 0.08
"""A shorter period is taken before a longer one that fits better by no more than this."""
_VOICED = 0.35
"""Aperiodicity under which a frame is voiced."""
_LEAST_LEVEL = 1e-3
_PHASE_WINDOW = 960
_USUAL = 150.0


class Track(NamedTuple):
    """Of frames 10 ms apart, [B, F] each: pitch in Hz (between voiced parts drawn straight), phase of the fundamental
    at the frame's middle in cycles, and whether the frame is voiced."""

    pitch: Tensor
    middles: Tensor
    voiced: Tensor


def track_pitch(sound: Tensor) -> Track:
    """Pitches of sound [B, F * 240] at 24 kHz, by the YIN method (de Cheveigné and Kawahara, 2002)."""
    if sound.shape[-1] < HOP:
        nothing = sound.new_zeros(len(sound), 0, dtype=torch.float32)
        return Track(nothing, nothing, nothing.bool())
    aperiodicity, level = _aperiodicity(sound)
    low, high = _LAGS
    inside = aperiodicity[..., low : high + 1]
    fits = inside < inside.amin(-1, keepdim=True) + _SLACK
    first = fits.int().argmax(-1, keepdim=True)
    lags = torch.arange(low, high + 1, device=sound.device)
    near = (lags - low >= first) & (lags - low <= first * 1.2 + 12)
    best = torch.where(near, inside, torch.full_like(inside, torch.inf)).argmin(-1, keepdim=True) + low
    before, here, after = (aperiodicity.gather(-1, best + step)[..., 0] for step in (-1, 0, 1))
    bend = (before - 2 * here + after).clamp(min=1e-6)
    lag = best[..., 0] + ((before - after) / (2 * bend)).clamp(-0.5, 0.5)
    voiced = _steady((here < _VOICED) & (level > _LEAST_LEVEL))
    pitch = _median(SAMPLE_RATE / lag, voiced)
    pitch = _fill(pitch, voiced)
    return Track(pitch, _fundamental_phase(sound, pitch), voiced)


def _aperiodicity(sound: Tensor) -> tuple[Tensor, Tensor]:
    """Cumulative mean normalised differences [B, F, 402] at lags 0 to 401, and rms levels [B, F]."""
    most = _LAGS[1] + 1
    size = _SUM + most
    lead = (_SUM + _USUAL_LAG - HOP) // 2
    smooth = torch.hann_window(_SMOOTH + 2, periodic=False, device=sound.device)[1:-1]
    low = F.conv1d(sound.float()[:, None], (smooth / smooth.sum())[None, None], padding=_SMOOTH // 2)[:, 0]
    frames = F.pad(low, (lead, size - HOP - lead)).unfold(-1, size, HOP)
    spectrum = torch.fft.rfft(frames, _SIZE)
    head = torch.fft.rfft(frames[..., :_SUM], _SIZE)
    product = torch.fft.irfft(spectrum * head.conj(), _SIZE)[..., : most + 1]
    energy = F.pad(torch.cumsum(frames.double().square(), -1), (1, 0))
    moving = (energy[..., _SUM : _SUM + most + 1] - energy[..., : most + 1]).float()
    difference = (moving[..., :1] + moving - 2 * product).clamp(min=0)
    lags = torch.arange(1, most + 1, device=sound.device)
    mean = torch.cumsum(difference[..., 1:], -1) / lags
    normal = F.pad(difference[..., 1:] / mean.clamp(min=1e-9), (1, 0), value=1.0)
    return normal, (moving[..., 0] / _SUM).clamp(min=0).sqrt()


def _steady(voiced: Tensor) -> Tensor:
    """Three of five neighbours are voiced."""
    return F.avg_pool1d(voiced.float()[:, None], 5, 1, 2)[:, 0] > 0.5


def _median(pitch: Tensor, voiced: Tensor, width: int = 7) -> Tensor:
    """Octave errors brought to the median of the voiced neighbourhood."""
    around = torch.where(voiced, pitch, torch.full_like(pitch, torch.nan))
    half = width // 2
    windows = F.pad(around, (half, half), value=torch.nan).unfold(-1, width, 1)
    middle = torch.nanmedian(windows, -1).values
    wrong = (pitch / middle - 1).abs() > 0.25
    return torch.where(wrong & voiced, middle, pitch)


def _fill(pitch: Tensor, voiced: Tensor) -> Tensor:
    """Pitch drawn straight over frames that are not voiced."""
    count = pitch.shape[-1]
    place = torch.arange(count, device=pitch.device).expand_as(pitch)
    last = torch.where(voiced, place, -torch.ones_like(place)).cummax(-1).values
    coming = torch.where(voiced, place, torch.full_like(place, count)).flip(-1).cummin(-1).values.flip(-1)
    has_last, has_next = last >= 0, coming < count
    before = pitch.gather(-1, last.clamp(min=0))
    after = pitch.gather(-1, coming.clamp(max=count - 1))
    before, after = torch.where(has_last, before, after), torch.where(has_next, after, before)
    share = (place - last).float() / (coming - last).clamp(min=1).float()
    drawn = before + (after - before) * torch.where(has_last & has_next, share, torch.zeros_like(share))
    return torch.where(has_last | has_next, drawn, torch.full_like(drawn, _USUAL))


def _fundamental_phase(sound: Tensor, pitch: Tensor) -> Tensor:
    """Phase in cycles of the component at the pitch, in a window of 40 ms about each frame's middle."""
    lead = (_PHASE_WINDOW - HOP) // 2
    frames = F.pad(sound.float(), (lead, lead)).unfold(-1, _PHASE_WINDOW, HOP)
    at = torch.arange(_PHASE_WINDOW, device=sound.device) - _PHASE_WINDOW // 2
    frames = frames * torch.hann_window(_PHASE_WINDOW, device=sound.device)
    angle = 2 * torch.pi / SAMPLE_RATE * pitch[..., None] * at
    real, imaginary = (frames * torch.cos(angle)).sum(-1), -(frames * torch.sin(angle)).sum(-1)
    return torch.atan2(imaginary, real) / (2 * torch.pi)
