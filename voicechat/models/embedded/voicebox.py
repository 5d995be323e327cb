"""The VoiceBox: codes of speech (25 a second) and the phonemes that they speak to sound (24 kHz).

Codes are points of one finite scalar quantiser (FSQ) with 7 x 5 x 5 x 5 x 5 = 4,375 levels. So few bits leave much of
a sound open, and what is open comes out blurred; so the decoder is also told which phonemes are spoken there, as the
Talker is. It is a stack of ConvNeXt blocks, first at 25 Hz (one token of look-ahead), then at 100 Hz (causal). It gives
each frame a pitch, a complex filter for a pulse train of that pitch, and two magnitudes (5 ms apart) for noise; the
sound is the sum of both. So what is made of a chunk of codes depends, beside its context, on the pulse train's phase
where it begins and on its place in the reply, which is where the noise is read from.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.embedded.alphabet import SYMBOL_WINDOW, SYMBOLS
from voicechat.models.embedded.source import (
    HIGHEST,
    HOP,
    LOWEST,
    NOISE_FRAMES,
    NOISE_HOP,
    NOISE_WINDOW,
    SAMPLE_RATE,
    advance,
    frames_of,
    noise_spectra,
    overlap_add,
    pulses,
    steady_middles,
)
from voicechat.models.embedded.weights import (
    VOICEBOX_FILE,
    WEIGHTS_DIR,
    VoiceBoxConfig,
    load_tensors,
    load_voice_config,
)

__all__ = ["CODES", "LEVELS", "RIGHT_CONTEXT", "SAMPLE_RATE", "TOKEN_SAMPLES", "VoiceBoxNet", "load_voicebox"]

TOKEN_SAMPLES = 960
"""Samples of one code: 40 ms."""
LEVELS = (7, 5, 5, 5, 5)
CODES = 4375

RIGHT_CONTEXT = 2
"""Tokens after a chunk that still touch its sound."""

FRAMES_PER_TOKEN = TOKEN_SAMPLES // HOP
BINS = 481
"""Of the pulse train's spectrum: 25 Hz each."""
NOISE_BINS = 241
"""Of the noise's spectrum: 50 Hz each."""
_WINDOW = 960
_PULSES_SIZE = 48.0
"""Magnitude of a harmonic of the pulse train in a frame's spectrum, roughly."""
_NOISE_PER_TOKEN = TOKEN_SAMPLES // NOISE_HOP
_USUAL_PITCH = 150.0
_FIRST_MAGNITUDE = -5.0
"""Logarithm of the magnitudes that an untrained net gives: about that of speech."""
_TOKEN_KERNEL_LEFT = 4
_FRAME_KERNEL_LEFT = 6


def left_context(config: VoiceBoxConfig) -> int:
    """Receptive field to the left, in tokens: with as many before a chunk its sound is exact."""
    tokens = (_TOKEN_KERNEL_LEFT - 1) + _TOKEN_KERNEL_LEFT * (config.token_blocks - 1)
    frames = _FRAME_KERNEL_LEFT * config.frame_blocks + 4
    return tokens + -(-frames // FRAMES_PER_TOKEN)


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


class Filters(NamedTuple):
    """What the decoder says of F frames.

    ``pitch`` [B, F] in Hz; ``tone`` complex [B, F, 481], by which the pulse train's spectrum is multiplied; ``noise``
    [B, 2 F, 241], magnitudes by which the noise's is.
    """

    pitch: Tensor
    tone: Tensor
    noise: Tensor


class VoiceBoxNet(nn.Module):
    """The decoder. Float32 in use; runs on any number of tokens and sequences at once."""

    window: Tensor
    noise_window: Tensor
    noise_table: Tensor

    def __init__(self, config: VoiceBoxConfig | None = None) -> None:
        super().__init__()
        config = config or VoiceBoxConfig()
        self.config = config
        width = config.width
        self.quantizer = FiniteScalarQuantizer()
        self.project = nn.Linear(len(LEVELS), width)
        self.symbols = nn.Parameter(torch.empty(SYMBOL_WINDOW, SYMBOLS + 1, width).normal_(std=0.02))
        self.voice = nn.Embedding(config.voices, width) if config.voices > 1 else None
        self.token_blocks = nn.Sequential(
            ConvNeXtBlock(width, _TOKEN_KERNEL_LEFT - 1, 1, config.expansion),
            *(ConvNeXtBlock(width, _TOKEN_KERNEL_LEFT, 0, config.expansion) for _ in range(config.token_blocks - 1)),
        )
        self.upsample = nn.ConvTranspose1d(width, width, FRAMES_PER_TOKEN, stride=FRAMES_PER_TOKEN)
        self.frame_blocks = nn.Sequential(
            *(ConvNeXtBlock(width, _FRAME_KERNEL_LEFT, 0, config.expansion) for _ in range(config.frame_blocks))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2 * BINS + 2 * NOISE_BINS)
        with torch.no_grad():
            self.head.bias[:BINS] += _FIRST_MAGNITUDE
            self.head.bias[2 * BINS :] += _FIRST_MAGNITUDE
        self.pitch = nn.Linear(width, 1)
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        self.register_buffer("noise_window", torch.hann_window(NOISE_WINDOW), persistent=False)
        self.register_buffer("noise_table", torch.view_as_real(noise_spectra()), persistent=False)

    def forward(self, values: Tensor, symbols: Tensor, voices: Tensor) -> Tensor:
        """Sound [B, T * 960], not clipped.

        ``values`` [B, T, 5] are quantised; ``symbols`` (long [B, T, 9]) the Talker's windows of phonemes at each step,
        and ``voices`` (long [B, T]) numbers.
        """
        filters = self.filters(values, symbols, voices)
        first = torch.zeros(len(values), dtype=torch.long, device=values.device)
        return self.sound(filters, filters.pitch, steady_middles(filters.pitch), first)

    def filters(self, values: Tensor, symbols: Tensor, voices: Tensor) -> Filters:
        """As :meth:`forward`, but to what the sound is made by."""
        offsets = torch.arange(SYMBOL_WINDOW, device=symbols.device) * (SYMBOLS + 1)
        y = self.project(values) + F.embedding(symbols + offsets, self.symbols.flatten(0, 1)).sum(-2)
        if self.voice is not None:
            y = y + self.voice(voices)
        y = y.transpose(1, 2)
        y = self.frame_blocks(self.upsample(self.token_blocks(y))).transpose(1, 2)
        with torch.autocast(values.device.type, enabled=False):
            y = self.norm(y.float())
            magnitude, phase, noise = self.head(y).split((BINS, BINS, 2 * NOISE_BINS), -1)
            pitch = (_USUAL_PITCH * torch.exp(self.pitch(y)[..., 0])).clamp(LOWEST, HIGHEST)
            tone = torch.polar(torch.exp(magnitude.clamp(max=6)), phase)
            noise = torch.exp(noise.clamp(max=6)).view(len(y), -1, NOISE_BINS)
        return Filters(pitch, tone, noise)

    def sound(self, filters: Filters, pitch: Tensor, middles: Tensor, first: Tensor) -> Tensor:
        """Filter the sources: sound [B, F * 240], not clipped.

        The pulse train has this ``pitch`` [B, F] in Hz and these phases ``middles`` [B, F] in cycles at the frames'
        middles; the noise begins at the place of token ``first`` (long [B]) of a reply.
        """
        with torch.autocast(pitch.device.type, enabled=False):
            tone = frames_of(pulses(pitch, middles), self.window, HOP) / _PULSES_SIZE * filters.tone
            places = first[:, None] * _NOISE_PER_TOKEN + torch.arange(filters.noise.shape[1], device=first.device)
            noise = self.noise_table[places % NOISE_FRAMES] * filters.noise[..., None]
            made = overlap_add(tone, self.window, HOP)
            return made + overlap_add(torch.view_as_complex(noise), self.noise_window, NOISE_HOP)

    @torch.inference_mode()
    def decode(self, codes: Tensor, symbols: Tensor, voices: Tensor | None = None) -> Tensor:
        """Whole replies: codes [B, T] (long, 0 .. 4374) to float32 sound [B, T * 960] in [-1, 1].

        ``symbols`` long [B, T, 9]: the Talker's window of phonemes at each step (see
        :meth:`~voicechat.models.embedded.talker.Conditioner.forward`). ``voices`` long [B]: number of each sequence's
        voice; without it all are the first.
        """
        zeros = torch.zeros(len(codes), dtype=torch.long, device=codes.device)
        voices = zeros if voices is None else voices
        return self.stream(codes, symbols, voices, zeros, zeros, zeros, zeros.double())[0]

    @torch.inference_mode()
    def stream(
        self,
        codes: Tensor,
        symbols: Tensor,
        voices: Tensor,
        first: Tensor,
        left: Tensor,
        end: Tensor,
        phase: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Chunks of replies: as :meth:`decode`, ``first`` to ``phase`` being [B].

        ``first`` (long): place of the chunk's first code in its reply; ``phase`` (float64): the pulse train's, in
        cycles from 0 to 1, at the chunk's token ``left`` (long), where what is new begins; ``end`` (long): the token
        after the last new one. The second result (float64 [B]) is the phase at ``end``: that of the reply's next chunk.
        """
        every = voices[:, None].expand(codes.shape)
        filters = self.filters(self.quantizer.values(codes), symbols, every)
        boundaries = advance(filters.pitch)
        here, there = (boundaries.gather(1, FRAMES_PER_TOKEN * at[:, None])[:, 0] for at in (left, end))
        middles = steady_middles(filters.pitch) + (phase - here)[:, None]
        sound = self.sound(filters, filters.pitch, middles, first).clamp(-1.0, 1.0)
        return sound, torch.remainder(phase + there - here, 1.0)


def load_voicebox(weights_dir: Path | str = WEIGHTS_DIR) -> VoiceBoxNet:
    """The trained decoder, float32 on CPU, in evaluation mode."""
    weights_dir = Path(weights_dir)
    net = VoiceBoxNet(load_voice_config(weights_dir).voicebox)
    net.load_state_dict(load_tensors(weights_dir / VOICEBOX_FILE))
    return net.eval().requires_grad_(False)
