"""Qwen3-Omni's VoiceBox: frames of 16 codes (12.5 a second) to sound (24 kHz), streamed without recomputing anything.

The net is Code2Wav of the Qwen3-Omni report: codes are embedded and averaged, go through a transformer with a sliding
window, are upsampled fourfold, and four blocks of transposed and causal convolutions make samples of them. Everything
is causal but the transposed convolutions of those blocks, whose output frame also needs the next input frame. So ``n``
frames make ``n * upsample - lag`` samples: each chunk of a reply but its first makes ``upsample`` samples a frame, and
a stream is, sample for sample, what the net makes of the whole reply.

What a stream has to remember between two chunks (keys and values of the window, the last inputs of each convolution)
lies in :class:`Memory`, one line for each stream, on the net's device; a chunk of a batch reads and writes its lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.qwen_common.config import layer_fields
from voicechat.models.qwen_common.layers import RmsNorm, turn, turns

SAMPLE_RATE = 24_000


@dataclass(frozen=True, slots=True)
class Code2WavConfig:
    """``code2wav_config`` of the model's ``config.json``."""

    codebook_size: int
    num_quantizers: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    sliding_window: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool
    decoder_dim: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]

    @staticmethod
    def of(config: Mapping[str, Any]) -> Code2WavConfig:
        """From the JSON object. Raises ValueError for a net that this module does not know."""
        return Code2WavConfig(
            **layer_fields(config, "Code2Wav", 10_000.0),
            codebook_size=config["codebook_size"],
            num_quantizers=config["num_quantizers"],
            sliding_window=config["sliding_window"],
            decoder_dim=config["decoder_dim"],
            upsample_rates=tuple(config["upsample_rates"]),
            upsampling_ratios=tuple(config["upsampling_ratios"]),
        )

    @property
    def upsample(self) -> int:
        """Samples of a frame."""
        return math.prod(self.upsample_rates) * math.prod(self.upsampling_ratios)

    @property
    def lags(self) -> tuple[int, ...]:
        """After each decoder block, its samples that lie before the reply's first one."""
        lags, lag = [], 0
        for rate in self.upsample_rates:
            lag = (lag + 1) * rate
            lags.append(lag)
        return tuple(lags)

    @property
    def lag(self) -> int:
        """Samples that a stream's first chunk makes less than it has frames for."""
        return self.lags[-1]


@dataclass(slots=True)
class Step:
    """One chunk of a batch on its way through the net: lines, places, and what the layers remember.

    ``lines`` long [B]; ``place`` long [B], frames before this chunk; ``fresh`` [B, 1, 1], true for a stream's first
    chunk, or None if there is no such stream in the batch.
    """

    lines: Tensor
    place: Tensor
    fresh: Tensor | None
    memory: Memory
    at: Iterator[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.at = iter(self.memory.parts)

    def exchange(self, new: Tensor, dim: int) -> Tensor:
        """What the next layer remembers, put before ``new`` along ``dim``; the end of both is remembered instead."""
        table = next(self.at)
        both = torch.cat((table.index_select(0, self.lines), new), dim)
        size = table.shape[dim]
        table.index_copy_(0, self.lines, both.narrow(dim, both.shape[dim] - size, size))
        return both

    def silence_before(self, hidden: Tensor, lag: int) -> Tensor:
        """Zero where a fresh stream's time is before its first sample: its convolutions must find nothing there."""
        if self.fresh is None or not lag:
            return hidden
        early = torch.arange(hidden.shape[-1], device=hidden.device) < lag
        return hidden.masked_fill(self.fresh & early, 0.0)


class Memory:
    """What ``lines`` streams remember; the order of the parts is that in which the net asks for them."""

    def __init__(self, config: Code2WavConfig, lines: int, device: torch.device, dtype: torch.dtype) -> None:
        heads, size, past = config.num_key_value_heads, config.head_dim, config.sliding_window - 1
        shapes: list[tuple[int, ...]] = [(heads, past, size)] * (2 * config.num_hidden_layers)
        shapes += [(config.hidden_size, 6)] * (len(config.upsampling_ratios) + 1)
        for index in range(len(config.upsample_rates)):
            width = config.decoder_dim >> (index + 1)
            shapes += [(2 * width, 1), *((width, 6 * dilation) for dilation in _DILATIONS)]
        shapes.append((config.decoder_dim >> len(config.upsample_rates), 6))
        self.parts = [torch.zeros((lines, *shape), device=device, dtype=dtype) for shape in shapes]
        self.place = torch.zeros(lines, dtype=torch.long, device=device)

    def forget(self, lines: Tensor) -> None:
        """Begin new streams on ``lines`` (long [n])."""
        for part in (*self.parts, self.place):
            part.index_fill_(0, lines, 0)

    @property
    def bytes_per_line(self) -> int:
        """Size of one stream's memory."""
        return sum(part[0].numel() * part.element_size() for part in self.parts)


_DILATIONS = (1, 3, 9)


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))


class _Attention(nn.Module):
    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=bias)

    def forward(self, hidden: Tensor, by: tuple[Tensor, Tensor], mask: Tensor, step: Step) -> Tensor:
        batch, count, _ = hidden.shape
        split = (batch, count, -1, self.size)
        query = turn(self.q_proj(hidden).view(split).transpose(1, 2), by)
        key = step.exchange(turn(self.k_proj(hidden).view(split).transpose(1, 2), by), 2)
        value = step.exchange(self.v_proj(hidden).view(split).transpose(1, 2), 2)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=self.kv_heads != self.heads
        )
        return cast(Tensor, self.o_proj(mixed.transpose(1, 2).reshape(batch, count, -1)))


class _Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden)))


class _Layer(nn.Module):
    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = _Scale(config.hidden_size)
        self.mlp_layer_scale = _Scale(config.hidden_size)

    def forward(self, hidden: Tensor, by: tuple[Tensor, Tensor], mask: Tensor, step: Step) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(hidden), by, mask, step)
        hidden = hidden + self.self_attn_layer_scale.scale * mixed
        made = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + self.mlp_layer_scale.scale * made


class _Transformer(nn.Module):
    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """[B, n, width] to the same; keys are those of the window before the chunk, then the chunk's own."""
        past, count = self.config.sliding_window - 1, hidden.shape[1]
        new = torch.arange(count, device=hidden.device)
        keys = torch.arange(-past, count, device=hidden.device)
        distance = new[:, None] - keys
        near = (distance >= 0) & (distance <= past)
        mask = near & (step.place[:, None, None] + keys >= 0)
        cosine, sine = turns(step.place[:, None] + new, self.config.head_dim, self.config.rope_theta, hidden.dtype)
        by = cosine[:, None], sine[:, None]
        for layer in self.layers:
            hidden = layer(hidden, by, mask[:, None], step)
        return cast(Tensor, self.norm(hidden))


class _Causal(nn.Module):
    """A causal convolution; kernels of one need no memory."""

    def __init__(self, inner: int, outer: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inner, outer, kernel, dilation=dilation, groups=groups)

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        if self.conv.kernel_size[0] > 1:
            hidden = step.exchange(hidden, 2)
        return cast(Tensor, self.conv(hidden))


class _Repeat(nn.Module):
    """A transposed convolution whose kernel is its stride."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(width, width, factor, stride=factor)

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        return cast(Tensor, self.conv(hidden))


class _Upsample(nn.Module):
    """A transposed convolution with a kernel of two strides: frame ``t`` of the output needs ``t`` and ``t + 1``."""

    def __init__(self, inner: int, outer: int, rate: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, 2 * rate, stride=rate)
        self.rate = rate

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        made = self.conv(step.exchange(hidden, 2))
        return cast(Tensor, made[..., self.rate : -self.rate])


class _ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = _Causal(width, width, 7, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        x = self.norm(self.dwconv(hidden, step).transpose(1, 2))
        x = self.gamma * self.pwconv2(F.gelu(self.pwconv1(x)))
        return hidden + x.transpose(1, 2)


class _Snake(nn.Module):
    """x + sin²(x e^alpha) / e^beta (Ziyin et al. 2020, with a magnitude of its own)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, hidden: Tensor) -> Tensor:
        alpha, beta = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return hidden + (1.0 / (beta + 1e-9)) * torch.sin(hidden * alpha).pow(2)


class _Residual(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.act2 = _Snake(width), _Snake(width)
        self.conv1 = _Causal(width, width, 7, dilation)
        self.conv2 = _Causal(width, width, 1)

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        made = self.conv1(self.act1(hidden), step)
        return hidden + cast(Tensor, self.conv2(self.act2(made), step))


class _Block(nn.Module):
    def __init__(self, config: Code2WavConfig, index: int) -> None:
        super().__init__()
        inner, outer = config.decoder_dim >> index, config.decoder_dim >> (index + 1)
        rate = config.upsample_rates[index]
        self.lag = config.lags[index]
        self.block = nn.ModuleList(
            (_Snake(inner), _Upsample(inner, outer, rate), *(_Residual(outer, dilation) for dilation in _DILATIONS))
        )

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        snake, upsample, *residuals = self.block
        hidden = step.silence_before(upsample(snake(hidden), step), self.lag)
        for residual in residuals:
            hidden = step.silence_before(residual(hidden, step), self.lag)
        return hidden


class Code2Wav(nn.Module):
    """The net. Parameters are named as in the model's ``code2wav.`` part."""

    def __init__(self, config: Code2WavConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.code_embedding = nn.Embedding(config.codebook_size * config.num_quantizers, width)
        self.pre_transformer = _Transformer(config)
        self.upsample = nn.ModuleList(
            nn.ModuleList((_Repeat(width, factor), _ConvNeXt(width))) for factor in config.upsampling_ratios
        )
        last = config.decoder_dim >> len(config.upsample_rates)
        self.decoder = nn.ModuleList(
            (
                _Causal(width, config.decoder_dim, 7),
                *(_Block(config, index) for index in range(len(config.upsample_rates))),
                _Snake(last),
                _Causal(last, 1, 7),
            )
        )

    def memory(self, lines: int) -> Memory:
        """Room for ``lines`` streams on the net's device, in its type."""
        weight = self.code_embedding.weight
        return Memory(self.config, lines, weight.device, weight.dtype)

    @torch.inference_mode()
    def stream(self, codes: Tensor, memory: Memory, lines: Tensor, *, fresh: bool) -> Tensor:
        """The next chunks of a batch of streams: long [B, n, quantizers] to float32 sound [B, n * upsample].

        ``lines`` (long [B], each once) says whose they are. ``fresh``: there may be streams that begin here (their
        lines were forgotten); the first ``lag`` samples of theirs are nothing and to be dropped.
        """
        place = memory.place.index_select(0, lines)
        step = Step(lines, place, (place == 0)[:, None, None] if fresh else None, memory)
        memory.place.index_copy_(0, lines, place + codes.shape[1])
        offsets = torch.arange(codes.shape[2], device=codes.device) * self.config.codebook_size
        hidden = self.code_embedding(codes + offsets).mean(2)
        hidden = self.pre_transformer(hidden, step).transpose(1, 2)
        for repeat, block in cast("list[tuple[nn.Module, nn.Module]]", self.upsample):
            hidden = block(repeat(hidden, step), step)
        first, *blocks, snake, last = self.decoder
        hidden = first(hidden, step)
        for part in blocks:
            hidden = part(hidden, step)
        return cast(Tensor, last(snake(hidden), step))[:, 0].float().clamp(-1.0, 1.0)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        """Whole replies of one length: long [B, T, quantizers] to float32 sound [B, T * upsample - lag]."""
        lines = torch.arange(len(codes), device=codes.device)
        return self.stream(codes, self.memory(len(codes)), lines, fresh=True)[:, self.config.lag :]
