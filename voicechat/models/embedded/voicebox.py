"""The VoiceBox: codes of speech (25 a second) to sound (24 kHz).

Codes are points of one finite scalar quantiser (FSQ) with 7 x 5 x 5 x 5 x 5 = 4,375 levels. The decoder is a stack of
ConvNeXt blocks, first at 25 Hz (one token of look-ahead), then at 100 Hz (causal), and ends in an inverse STFT with
a window of 960 and a hop of 240 samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.embedded.weights import (
    VOICEBOX_FILE,
    WEIGHTS_DIR,
    VoiceBoxConfig,
    load_tensors,
    load_voice_config,
)

SAMPLE_RATE = 24_000
TOKEN_SAMPLES = 960
"""Samples of one code: 40 ms."""
LEVELS = (7, 5, 5, 5, 5)
CODES = 4375

RIGHT_CONTEXT = 2
"""Tokens after a chunk that still touch its sound."""

_HOP = 240
_FRAMES_PER_TOKEN = TOKEN_SAMPLES // _HOP
_WINDOW = 960
_LEAD = (_WINDOW - _HOP) // 2
_TOKEN_KERNEL_LEFT = 4
_FRAME_KERNEL_LEFT = 6


def left_context(config: VoiceBoxConfig) -> int:
    """Receptive field to the left, in tokens: with as many before a chunk its sound is exact."""
    tokens = (_TOKEN_KERNEL_LEFT - 1) + _TOKEN_KERNEL_LEFT * (config.token_blocks - 1)
    frames = _FRAME_KERNEL_LEFT * config.frame_blocks + 2
    return tokens + -(-frames // _FRAMES_PER_TOKEN)


FULL_LEFT_CONTEXT = left_context(VoiceBoxConfig())
"""Receptive field to the left of the packaged shape, in tokens."""


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution with ``left``/``right`` context, then a two-layer perceptron per position."""

    def __init__(self, width: int, left: int, right: int, expansion: int) -> None:
        super().__init__()
        self.context = (left, right)
        self.depthwise = nn.Conv1d(width, width, left + right + 1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, width * expansion)
        self.shrink = nn.Linear(width * expansion, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, T] to the same shape."""
        y = self.depthwise(F.pad(x, self.context)).transpose(1, 2)
        y = self.shrink(F.gelu(self.expand(self.norm(y)))) * self.scale
        return x + y.transpose(1, 2)


class FiniteScalarQuantizer(nn.Module):
    """Rounds each of five bounded numbers to a few levels; the levels together are one code."""

    levels: Tensor
    basis: Tensor

    def __init__(self) -> None:
        super().__init__()
        levels = torch.tensor(LEVELS)
        self.register_buffer("levels", levels, persistent=False)
        basis = torch.cumprod(torch.tensor((1, *LEVELS[:-1])), 0)
        self.register_buffer("basis", basis, persistent=False)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise [..., 5]: values in [-1, 1] (straight-through gradient) and codes [...]."""
        half = torch.div(self.levels, 2, rounding_mode="floor").float()
        bounded = torch.tanh(z.float()) * (half * 1.001)
        rounded = torch.round(bounded)
        through = bounded + (rounded - bounded).detach()
        return through / half, ((rounded + half).long() * self.basis).sum(-1)

    def values(self, codes: Tensor) -> Tensor:
        """Codes [...] to the decoder's input [..., 5] in [-1, 1]."""
        half = torch.div(self.levels, 2, rounding_mode="floor")
        digits = torch.div(codes[..., None], self.basis, rounding_mode="floor") % self.levels
        return (digits - half).float() / half


def as_complex(spectrum: Tensor) -> Tensor:
    """Log magnitudes and phases [..., 962] as complex numbers [..., 481]."""
    magnitude, phase = spectrum.chunk(2, -1)
    return torch.polar(torch.exp(magnitude.clamp(max=6)), phase)


class VoiceBoxNet(nn.Module):
    """The decoder. Float32 in use; runs on any number of tokens and sequences at once."""

    window: Tensor

    def __init__(self, config: VoiceBoxConfig | None = None) -> None:
        super().__init__()
        config = config or VoiceBoxConfig()
        self.config = config
        width = config.width
        self.quantizer = FiniteScalarQuantizer()
        self.project = nn.Linear(len(LEVELS), width)
        self.voice = nn.Embedding(config.voices, width) if config.voices > 1 else None
        self.token_blocks = nn.Sequential(
            ConvNeXtBlock(width, _TOKEN_KERNEL_LEFT - 1, 1, config.expansion),
            *(ConvNeXtBlock(width, _TOKEN_KERNEL_LEFT, 0, config.expansion) for _ in range(config.token_blocks - 1)),
        )
        self.upsample = nn.ConvTranspose1d(width, width, _FRAMES_PER_TOKEN, stride=_FRAMES_PER_TOKEN)
        self.frame_blocks = nn.Sequential(
            *(ConvNeXtBlock(width, _FRAME_KERNEL_LEFT, 0, config.expansion) for _ in range(config.frame_blocks))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _WINDOW + 2)
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)

    def forward(self, values: Tensor, voices: Tensor) -> Tensor:
        """Quantised values [B, T, 5] and voices (long) [B, T] to sound [B, T * 960], not clipped."""
        return self.overlap_add(self.spectrum(values, voices))

    def spectrum(self, values: Tensor, voices: Tensor) -> Tensor:
        """As :meth:`forward`, but to the log magnitudes and phases [B, T * 4, 962] of which the sound is made."""
        y = self.project(values)
        if self.voice is not None:
            y = y + self.voice(voices)
        y = y.transpose(1, 2)
        y = self.frame_blocks(self.upsample(self.token_blocks(y))).transpose(1, 2)
        with torch.autocast(values.device.type, enabled=False):
            return cast(Tensor, self.head(self.norm(y.float())))

    def overlap_add(self, spectrum: Tensor) -> Tensor:
        """Log magnitudes and phases [B, F, 962] to sound [B, F * 240]."""
        frames = torch.fft.irfft(as_complex(spectrum), _WINDOW, dim=-1) * self.window
        batch, count, _ = frames.shape
        overlap = _WINDOW // _HOP
        frames = frames.view(batch, count, overlap, _HOP)
        weight = (self.window**2).view(1, 1, overlap, _HOP).expand(1, count, overlap, _HOP)
        sound = torch.zeros(batch, count + overlap - 1, _HOP, device=spectrum.device)
        norm = torch.zeros(1, count + overlap - 1, _HOP, device=spectrum.device)
        for k in range(overlap):
            padding = (0, 0, k, overlap - 1 - k)
            sound = sound + F.pad(frames[:, :, k], padding)
            norm = norm + F.pad(weight[:, :, k], padding)
        return (sound / norm.clamp(min=1e-3)).flatten(1)[:, _LEAD : _LEAD + count * _HOP]

    def analyse(self, sound: Tensor) -> Tensor:
        """Sound [B, F * 240] to its complex spectrum [B, F, 481], frame by frame where :meth:`overlap_add` puts them.

        The spectrum that a sound is made of and the one it has are the same only if neighbouring frames agree.
        """
        frames = F.pad(sound, (_LEAD, _LEAD)).unfold(-1, _WINDOW, _HOP)
        return torch.fft.rfft(frames * self.window, dim=-1)

    @torch.inference_mode()
    def decode(self, codes: Tensor, voices: Tensor | None = None) -> Tensor:
        """Codes [B, T] (long, 0 .. 4374) to float32 sound [B, T * 960] in [-1, 1].

        ``voices`` long [B]: number of each sequence's voice; without it all are the first.
        """
        if voices is None:
            voices = torch.zeros(len(codes), dtype=torch.long, device=codes.device)
        every = voices[:, None].expand(codes.shape)
        return cast(Tensor, self(self.quantizer.values(codes), every)).clamp(-1.0, 1.0)


def load_voicebox(weights_dir: Path | str = WEIGHTS_DIR) -> VoiceBoxNet:
    """The trained decoder, float32 on CPU, in evaluation mode."""
    weights_dir = Path(weights_dir)
    net = VoiceBoxNet(load_voice_config(weights_dir).voicebox)
    net.load_state_dict(load_tensors(weights_dir / VOICEBOX_FILE))
    return net.eval().requires_grad_(False)
