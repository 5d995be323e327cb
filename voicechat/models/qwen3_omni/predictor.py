"""Qwen3-Omni's code predictor: from a frame's first code to its further ones, for many replies at once.

A small transformer reads the Talker's last hidden state and the embedding of the frame's first code, and then writes
one code of each further codebook after another, each through an embedding and a head of its own. A frame is a sequence
of its own: nothing is kept from one to the next. All steps of a frame are unrolled over fixed buffers of keys and
values, so that a frame is one CUDA graph, and nothing is ever read twice.

Draws are a function of the reply's seed, the frame and the codebook alone (a hash makes the noise), so that a reply is
the same alone, in a batch, and when it is made anew after a preemption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.qwen_common.config import layer_fields
from voicechat.models.qwen_common.layers import RmsNorm, turn, turns

TOP_K, TOP_P = 50, 0.8
"""As the published model draws the further codes."""


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """``talker_config.code_predictor_config`` of the model's ``config.json``."""

    vocab_size: int
    num_code_groups: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    attention_bias: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> PredictorConfig:
        """From the JSON object. Raises ValueError for a net that this module does not know."""
        return PredictorConfig(
            **layer_fields(config, "a code predictor", 1_000_000.0),
            vocab_size=config["vocab_size"],
            num_code_groups=config["num_code_groups"],
        )


class _Layer(nn.Module):
    """A layer of the Qwen3 kind; queries, keys and values come of one product, gate and up of another."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        width, bias = config.hidden_size, config.attention_bias
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=bias)
        self.q_norm = RmsNorm(self.size, config.rms_norm_eps)
        self.k_norm = RmsNorm(self.size, config.rms_norm_eps)
        self.gate_up = nn.Linear(width, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, width, bias=False)
        self.input_layernorm = RmsNorm(width, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(width, config.rms_norm_eps)

    def forward(self, hidden: Tensor, by: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, at: int) -> Tensor:
        """[B, n, width] at positions ``at`` and on; ``keys`` and ``values`` [B, kv heads, all, size] are filled in."""
        batch, count, _ = hidden.shape
        heads, kv_heads = self.heads, self.kv_heads
        made = self.qkv(self.input_layernorm(hidden)).view(batch, count, heads + 2 * kv_heads, self.size)
        both, value = made.split((heads + kv_heads, kv_heads), 2)
        scale = torch.cat((self.q_norm.weight.expand(heads, -1), self.k_norm.weight.expand(kv_heads, -1)))
        both = turn((F.rms_norm(both, (self.size,), None, self.q_norm.eps) * scale).transpose(1, 2), by)
        query, key = both.split((heads, kv_heads), 1)
        value = value.transpose(1, 2)
        end = at + count
        keys[:, :, at:end], values[:, :, at:end] = key, value
        mixed = F.scaled_dot_product_attention(
            query, keys[:, :, :end], values[:, :, :end], is_causal=at == 0, enable_gqa=heads != kv_heads
        )
        hidden = hidden + self.o_proj(mixed.transpose(1, 2).reshape(batch, count, -1))
        gate, up = self.gate_up(self.post_attention_layernorm(hidden)).chunk(2, -1)
        return hidden + cast(Tensor, self.down_proj(F.silu(gate) * up))


class CodePredictor(nn.Module):
    """The net. :meth:`load` takes the parameters of the model's ``talker.code_predictor.`` part."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        groups = config.num_code_groups - 1
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.embedding = nn.Parameter(torch.zeros(groups, config.vocab_size, config.hidden_size))
        self.heads = nn.Parameter(torch.zeros(groups, config.vocab_size, config.hidden_size))

    def forward(self, past: Tensor, first: Tensor, seeds: Tensor, frames: Tensor, draw: Tensor) -> Tensor:
        """The further codes, long [B, groups - 1].

        ``past`` [B, width]: the Talker's hidden state that the frame's first code was drawn from; ``first``
        [B, width]: that code's embedding; ``seeds``, ``frames`` long [B]; ``draw`` bool [B]: false takes the
        likeliest codes.
        """
        config = self.config
        batch, groups = len(past), config.num_code_groups - 1
        shape = (batch, config.num_key_value_heads, groups + 1, config.head_dim)
        stores = [(past.new_empty(shape), past.new_empty(shape)) for _ in self.layers]
        places = torch.arange(groups + 1, device=past.device)
        cosine, sine = turns(places, config.head_dim, config.rope_theta, past.dtype)
        hidden, at, codes = torch.stack((past, first), 1), 0, []
        for group in range(groups):
            end = at + hidden.shape[1]
            for layer, (keys, values) in zip(self.layers, stores, strict=True):
                hidden = layer(hidden, (cosine[at:end], sine[at:end]), keys, values, at)
            logits = F.linear(self.norm(hidden[:, -1]), self.heads[group])
            code = _draw(logits, _mixed(_mixed(seeds) + frames * groups + group), draw)
            codes.append(code)
            hidden, at = F.embedding(code, self.embedding[group])[:, None], end
        return torch.stack(codes, 1)

    def embed(self, codes: Tensor) -> Tensor:
        """The sum of the embeddings of further codes: long [n, groups - 1] to [n, width]."""
        groups, vocabulary = self.embedding.shape[:2]
        places = codes + torch.arange(groups, device=codes.device) * vocabulary
        return F.embedding(places, self.embedding.flatten(0, 1)).sum(1)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take all parameters, by the names of the published model. Raises KeyError if one is missing."""
        groups = range(self.config.num_code_groups - 1)
        mine = {
            "norm.weight": tensors["model.norm.weight"],
            "embedding": torch.stack([tensors[f"model.codec_embedding.{group}.weight"] for group in groups]),
            "heads": torch.stack([tensors[f"lm_head.{group}.weight"] for group in groups]),
        }
        for index in range(self.config.num_hidden_layers):
            theirs, ours = f"model.layers.{index}.", f"layers.{index}."
            for kind in ("weight", "bias") if self.config.attention_bias else ("weight",):
                parts = [tensors[f"{theirs}self_attn.{name}_proj.{kind}"] for name in "qkv"]
                mine[f"{ours}qkv.{kind}"] = torch.cat(parts)
                mine[f"{ours}o_proj.{kind}"] = tensors[f"{theirs}self_attn.o_proj.{kind}"]
            for name in ("q_norm", "k_norm"):
                mine[f"{ours}{name}.weight"] = tensors[f"{theirs}self_attn.{name}.weight"]
            gates = [tensors[f"{theirs}mlp.{name}_proj.weight"] for name in ("gate", "up")]
            mine[f"{ours}gate_up.weight"] = torch.cat(gates)
            mine[f"{ours}down_proj.weight"] = tensors[f"{theirs}mlp.down_proj.weight"]
            for name in ("input_layernorm", "post_attention_layernorm"):
                mine[f"{ours}{name}.weight"] = tensors[f"{theirs}{name}.weight"]
        self.load_state_dict(mine)


def parameter_names(config: PredictorConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes that :meth:`CodePredictor.load` asks for."""
    with torch.device("meta"):
        net = CodePredictor(config)
    width, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (width,)}
    for group in range(len(net.embedding)):
        shapes[f"model.codec_embedding.{group}.weight"] = shapes[f"lm_head.{group}.weight"] = (config.vocab_size, width)
    for index in range(config.num_hidden_layers):
        prefix = f"model.layers.{index}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (query, width),
            f"{prefix}self_attn.k_proj.weight": (key, width),
            f"{prefix}self_attn.v_proj.weight": (key, width),
            f"{prefix}self_attn.o_proj.weight": (width, query),
            f"{prefix}self_attn.q_norm.weight": (config.head_dim,),
            f"{prefix}self_attn.k_norm.weight": (config.head_dim,),
            f"{prefix}mlp.gate_proj.weight": (inner, width),
            f"{prefix}mlp.up_proj.weight": (inner, width),
            f"{prefix}mlp.down_proj.weight": (width, inner),
            f"{prefix}input_layernorm.weight": (width,),
            f"{prefix}post_attention_layernorm.weight": (width,),
        }
    return shapes


def _mixed(x: Tensor) -> Tensor:
    """A 32-bit hash of integers (the finaliser of MurmurHash3, public domain), as long."""
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _draw(logits: Tensor, keys: Tensor, draw: Tensor) -> Tensor:
    """One code of each line of [B, vocabulary]: the likeliest, or drawn of the best ones with the noise of ``keys``."""
    best, codes = logits.float().topk(min(TOP_K, logits.shape[-1]), -1)
    chances = best.softmax(-1)
    kept = chances.cumsum(-1) - chances < TOP_P
    noise = (_mixed(keys[:, None] * 0x9E3779B1 + codes).double() + 0.5) / 2**32
    gumbel = -torch.log(-torch.log(noise)).float()
    scores = torch.where(draw[:, None], (best + gumbel).masked_fill(~kept, -torch.inf), best)
    return codes.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
