"""Nets that only training needs: the VoiceBox's encoder, its phoneme head, mel losses and discriminators."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from voicechat.models.embedded.talker import SYMBOLS
from voicechat.models.embedded.voicebox import LEVELS, SAMPLE_RATE, ConvNeXtBlock, FiniteScalarQuantizer

LABELS = 2
"""Phoneme labels per code: one every 20 ms."""
_HOP = 240
_STRIDE = 4


def mel_filters(size: int, bands: int) -> Tensor:
    """Triangular mel filters [size // 2 + 1, bands] at 24 kHz."""
    bins = torch.linspace(0, SAMPLE_RATE / 2, size // 2 + 1)[:, None]
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    low, mid, high = edges[:-2], edges[1:-1], edges[2:]
    return torch.minimum((bins - low) / (mid - low), (high - bins) / (high - mid)).clamp(min=0)


class LogMel(nn.Module):
    """Log magnitudes in mel bands: sound [B, N] to [B, bands, frames]."""

    window: Tensor
    filters: Tensor

    def __init__(self, size: int, hop: int, bands: int) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.floor = 5e-3 * size / 1024
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.register_buffer("filters", mel_filters(size, bands), persistent=False)

    def forward(self, sound: Tensor) -> Tensor:
        with torch.autocast(sound.device.type, enabled=False):
            spectrum = torch.stft(sound.float(), self.size, self.hop, window=self.window, return_complex=True)
            magnitude = torch.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9)
            return torch.log(magnitude.transpose(1, 2) @ self.filters + self.floor).transpose(1, 2)


class MelLoss(nn.Module):
    """Mean L1 distance of log mels at four resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.mels = nn.ModuleList(LogMel(n, n // 4, b) for n, b in ((256, 40), (512, 80), (1024, 100), (2048, 128)))

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        """Two sounds [B, N] to the distance of each pair, [B]."""
        return torch.stack([(mel(made) - mel(real)).abs().mean((1, 2)) for mel in self.mels]).mean(0)


class ValleyLoss(nn.Module):
    """Mean L1 distance of log magnitudes in narrow bins under 4 kHz: keeps the valleys between harmonics empty."""

    window: Tensor

    def __init__(self, size: int = 2048) -> None:
        super().__init__()
        self.size, self.bins, self.floor = size, 4000 * size // SAMPLE_RATE, 5e-3 * size / 1024
        self.register_buffer("window", torch.hann_window(size), persistent=False)

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        """Two sounds [B, N] to a scalar."""
        return F.l1_loss(self._log(made), self._log(real))

    def _log(self, sound: Tensor) -> Tensor:
        with torch.autocast(sound.device.type, enabled=False):
            spectrum = torch.stft(sound.float(), self.size, self.size // 4, window=self.window, return_complex=True)
            spectrum = spectrum[:, : self.bins]
            return torch.log(torch.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9) + self.floor)


class Encoder(nn.Module):
    """Sound [B, T * 960] to quantised values [B, T, 5] and codes [B, T]. Looks both ways."""

    def __init__(self, width: int = 384, blocks: int = 4) -> None:
        super().__init__()
        self.mel = LogMel(1024, _HOP, 100)
        self.begin = nn.Conv1d(100, width, 7, padding=3)
        self.frames = nn.Sequential(*(ConvNeXtBlock(width, 3, 3, 3) for _ in range(blocks)))
        self.down = nn.Conv1d(width, width, _STRIDE, stride=_STRIDE)
        self.tokens = nn.Sequential(*(ConvNeXtBlock(width, 3, 3, 3) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, len(LEVELS))
        self.quantizer = FiniteScalarQuantizer()

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        mel = self.mel(sound)[..., : sound.shape[-1] // _HOP]
        y = self.tokens(self.down(self.frames(self.begin(mel)))).transpose(1, 2)
        return cast(tuple[Tensor, Tensor], self.quantizer(self.project(self.norm(y))))


class PhonemeHead(nn.Module):
    """Quantised values [B, T, 5] to symbol logits [B, T, 2, 178]: keeps the codes phonetic."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.begin = nn.Conv1d(len(LEVELS), width, 3, padding=1)
        self.mix = nn.Conv1d(width, width, 1)
        self.out = nn.Linear(width, LABELS * SYMBOLS)

    def forward(self, values: Tensor) -> Tensor:
        y = F.gelu(self.mix(F.gelu(self.begin(values.transpose(1, 2)))))
        return cast(Tensor, self.out(y.transpose(1, 2))).unflatten(-1, (LABELS, SYMBOLS))


class Listener(nn.Module):
    """Sound [B, T * 960] to symbol logits [B, T, 2, 178] and the layers' features: tells whether speech is understood.

    Unlike :class:`PhonemeHead` it hears all of the sound, not what the codes keep of it.
    """

    def __init__(self, width: int = 256, blocks: int = 3) -> None:
        super().__init__()
        self.mel = LogMel(1024, _HOP, 80)
        self.begin = nn.Conv1d(80, width, 5, padding=2)
        self.frames = nn.ModuleList(ConvNeXtBlock(width, 3, 3, 2) for _ in range(blocks))
        self.down = nn.Conv1d(width, width, _STRIDE // LABELS, stride=_STRIDE // LABELS)
        self.labels = nn.ModuleList(ConvNeXtBlock(width, 4, 4, 2) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, SYMBOLS)

    def forward(self, sound: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = self.begin(self.mel(sound)[..., : sound.shape[-1] // _HOP])
        features = []
        for block in self.frames:
            features.append(x := block(x))
        x = self.down(x)
        for block in self.labels:
            features.append(x := block(x))
        logits = self.out(self.norm(x.transpose(1, 2)))
        return logits.unflatten(1, (-1, LABELS)), features


def hearing_loss(made: tuple[Tensor, list[Tensor]], real: tuple[Tensor, list[Tensor]], labels: Tensor) -> Tensor:
    """How much worse a listener fares on made sound: cross-entropy of ``labels``, and distance of the features."""
    spoken = F.cross_entropy(made[0].float().flatten(0, 2), labels.flatten())
    return spoken + torch.stack(_distances(made[1], real[1])).mean()


LOUDER = 8.0
"""Speech lies near 0.05: discriminators see it at about the size that their layers are made for."""


Pair = tuple[int, int]


def _conv(inputs: int, outputs: int, kernel: Pair, stride: Pair, padding: Pair) -> nn.Module:
    """A convolution that keeps the size of what passes: by torch's own start the scores would begin near nothing."""
    made = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    nn.init.kaiming_normal_(made.weight, 0.1)
    return weight_norm(made)


class _PeriodDiscriminator(nn.Module):
    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths = (1, 32, 128, 256, 512, 512)
        self.layers = nn.ModuleList(
            _conv(a, b, (5, 1), (3, 1), (2, 0)) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.out = _conv(widths[-1], 1, (3, 1), (1, 1), (1, 0))

    def forward(self, sound: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = F.pad(LOUDER * sound, (0, -sound.shape[-1] % self.period)).view(len(sound), 1, -1, self.period)
        return _judge(x, self.layers, self.out)


class _SpectrumDiscriminator(nn.Module):
    window: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.ModuleList(_conv(2 if n == 0 else 32, 32, (3, 9), (1, 2), (1, 4)) for n in range(3))
        self.layers.append(_conv(32, 32, (3, 3), (1, 1), (1, 1)))
        self.out = _conv(32, 1, (3, 3), (1, 1), (1, 1))

    def forward(self, sound: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(sound.device.type, enabled=False):
            louder = LOUDER * sound.float() / math.sqrt(self.size)
            spectrum = torch.stft(louder, self.size, self.size // 4, window=self.window, return_complex=True)
            x = torch.stack((spectrum.real, spectrum.imag), 1).transpose(2, 3)
        return _judge(x, self.layers, self.out)


def _judge(x: Tensor, layers: nn.ModuleList, out: nn.Module) -> tuple[Tensor, list[Tensor]]:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return out(x), features


class Discriminators(nn.Module):
    """Five that look at periods, three of them again at what lies under 3 kHz, and three at spectra.

    Each gives a score map and its features.
    """

    def __init__(self) -> None:
        super().__init__()
        self.judges = nn.ModuleList(_PeriodDiscriminator(period) for period in (2, 3, 5, 7, 11))
        self.judges.extend(_SpectrumDiscriminator(size) for size in (512, 1024, 2048))
        self.low_judges = nn.ModuleList(_PeriodDiscriminator(period) for period in (2, 3, 5))

    def forward(self, sound: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        low = F.avg_pool1d(sound[:, None], 4)[:, 0]
        return [judge(sound) for judge in self.judges] + [judge(low) for judge in self.low_judges]


Verdicts = list[tuple[Tensor, list[Tensor]]]


def judge_loss(real: Verdicts, made: Verdicts) -> Tensor:
    """Hinge loss of the discriminators, summed over them."""
    parts = [
        F.relu(1 - r.float()).mean() + F.relu(1 + m.float()).mean() for (r, _), (m, _) in zip(real, made, strict=True)
    ]
    return torch.stack(parts).sum()


def fool_loss(made: Verdicts) -> Tensor:
    """Hinge loss of the generator on each sequence [B], summed over the discriminators."""
    return torch.stack([-score.float().flatten(1).mean(1) for score, _ in made]).sum(0)


def feature_loss(real: Verdicts, made: Verdicts) -> Tensor:
    """L1 distance of the discriminators' features on each sequence [B], each layer's beside its size in real sound;
    summed."""
    parts = [part for (_, r), (_, m) in zip(real, made, strict=True) for part in _distances(m, r)]
    return torch.stack(parts).sum(0)


def _distances(made: list[Tensor], real: list[Tensor]) -> list[Tensor]:
    """L1 distance of each layer's features [B], beside their size in all of the real sound."""
    return [
        (m.float() - r.float()).abs().flatten(1).mean(1) / (r.float().abs().mean() + 1e-4)
        for m, r in zip(made, real, strict=True)
    ]
