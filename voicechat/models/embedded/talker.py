"""The Talker: symbol rows of a text to codes of speech, one every 40 ms.

A token says two things: which code is spoken now, and by how many rows (0, 1 or 2) the pointer into the text moves on
before the next step. The pointer never moves back, so a reply cannot loop, skip far or end before its text is over.

In training and in the weights file embedding and head are factorised (codes and advances apart, see
:class:`TalkerNet`); :func:`export_hf` multiplies them out, so that any engine that runs ``LlamaForCausalLM`` runs the
Talker unchanged when it adds the :class:`Conditioner`'s rows to the token embeddings.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from voicechat.models.embedded.alphabet import LEFT, NONE_SYMBOL, RIGHT, SYMBOL_WINDOW, SYMBOLS
from voicechat.models.embedded.voicebox import CODES
from voicechat.models.embedded.weights import (
    TALKER_FILE,
    WEIGHTS_DIR,
    TalkerConfig,
    load_tensors,
    load_voice_config,
)

__all__ = [
    "ADVANCES",
    "BOS",
    "CODES",
    "EOS",
    "LEFT",
    "NONE_SYMBOL",
    "RIGHT",
    "STEP_SAMPLES",
    "SYMBOLS",
    "SYMBOL_WINDOW",
    "VOCABULARY",
    "Cache",
    "Conditioner",
    "TalkerConfig",
    "TalkerNet",
    "export_hf",
    "load_talker",
    "split",
    "symbol_windows",
]

ADVANCES = 3
"""The pointer moves by 0, 1 or 2 rows a step."""
BOS = CODES * ADVANCES
"""Input token of step 0."""
EOS = BOS + 1
"""Predicted when the last row has been spoken."""
VOCABULARY = 13_184
"""Size of the exported vocabulary: a multiple of 64; ids over EOS are never predicted."""
STEP_SAMPLES = 960
"""Samples of one step at 24 kHz: 40 ms."""

_SPECIALS = 3
_UNUSED = VOCABULARY - EOS - 1


def split(token_id: int) -> tuple[int, int]:
    """Token to (code, advance). Raises ``ValueError`` for BOS, EOS and ids outside the vocabulary."""
    if not 0 <= token_id < BOS:
        raise ValueError(f"token {token_id} carries no code")
    return divmod(token_id, ADVANCES)


def symbol_windows(symbols: Tensor) -> Tensor:
    """What is seen from each row of a whole text: symbols [R] to long [R, 9], :data:`NONE_SYMBOL` outside the text."""
    none = symbols.new_full((max(LEFT, RIGHT),), NONE_SYMBOL, dtype=torch.long)
    return torch.cat((none[:LEFT], symbols.long(), none[:RIGHT])).unfold(0, SYMBOL_WINDOW, 1)


class Conditioner(nn.Module):
    """What the Talker knows of the text at one step, as a row that is added to its input embedding."""

    def __init__(self, width: int, voices: int, hidden_width: int | None) -> None:
        super().__init__()
        self.symbols = nn.Parameter(torch.empty(SYMBOL_WINDOW, SYMBOLS + 1, width).normal_(std=0.02))
        self.voice = nn.Embedding(voices, width)
        nn.init.normal_(self.voice.weight, std=0.02)
        self.hidden = nn.Linear(hidden_width, width, bias=False) if hidden_width else None

    @classmethod
    def from_weights(
        cls, weights_dir: Path | str = WEIGHTS_DIR, thinker: str | None = None, projection: Path | str | None = None
    ) -> Conditioner:
        """The trained part, with the matrix of one Thinker (``None``: text alone). Raises ``KeyError`` if unknown.

        ``projection``: file with the matrix of a Thinker that the weights do not know (``weight`` [width, H]).
        """
        if projection is not None:
            if thinker is not None:
                raise ValueError("either a Thinker that the weights know or a projection, not both")
            made = cls.from_weights(weights_dir)
            matrix = load_tensors(projection)["weight"]
            made.hidden = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
            made.hidden.load_state_dict({"weight": matrix})
            return made.eval().requires_grad_(False)
        weights_dir = Path(weights_dir)
        config = load_voice_config(weights_dir).talker
        widths = dict(config.thinkers)
        made = cls(config.width, len(config.voices), widths[thinker] if thinker is not None else None)
        tensors = load_tensors(weights_dir / TALKER_FILE)
        state = {"symbols": tensors["conditioner.symbols"], "voice.weight": tensors["conditioner.voice.weight"]}
        if thinker is not None:
            index = [name for name, _ in config.thinkers].index(thinker)
            state["hidden.weight"] = tensors[f"thinkers.{index}.weight"]
        made.load_state_dict(state)
        return made.eval().requires_grad_(False)

    def embed_symbols(self, symbols: Tensor) -> Tensor:
        """Symbol windows [..., 9] to [..., width]."""
        offsets = torch.arange(SYMBOL_WINDOW, device=symbols.device) * (SYMBOLS + 1)
        return F.embedding(symbols + offsets, self.symbols.flatten(0, 1)).sum(-2)

    def forward(self, symbols: Tensor, hidden: Tensor | None, has_hidden: Tensor, voice: Tensor) -> Tensor:
        """Rows for N steps, [N, width].

        ``symbols`` long [N, 9]: rows ``pointer - 3 .. pointer + 5``, :data:`NONE_SYMBOL` outside the text;
        ``hidden`` [N, H]: the Thinker's last hidden state at the token of the pointer's row; ``has_hidden`` bool [N]
        masks it; ``voice`` long [N].
        """
        row = self.embed_symbols(symbols) + self.voice(voice)
        if hidden is not None and self.hidden is not None:
            row = row + project_hidden(self.hidden, hidden) * has_hidden[..., None].to(row.dtype)
        return row


def project_hidden(matrix: nn.Linear, hidden: Tensor) -> Tensor:
    """Normalise hidden states [..., H] each by itself, then project them to the Talker's width."""
    normal = F.layer_norm(hidden.float(), hidden.shape[-1:])
    return cast(Tensor, matrix(normal.to(matrix.weight.dtype)))


class _Block(nn.Module):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.gate_up = nn.Linear(width, 2 * config.feed_forward, bias=False)
        self.down = nn.Linear(config.feed_forward, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, dropout: float, cache: Cache | None, layer: int) -> Tensor:
        batch, steps, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=steps > 1)
        attended = self.out(attended.transpose(1, 2).reshape(batch, steps, width))
        x = x + F.dropout(attended, dropout, self.training)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + F.dropout(self.down(F.silu(gate) * up), dropout, self.training)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


class Cache:
    """Keys and values of past steps for step-by-step generation: [B, heads, length, head width] per layer."""

    def __init__(self, config: TalkerConfig, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.layers, batch, config.heads, length, config.width // config.heads)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.filled = 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append one call's steps to a layer; returns everything so far. ``filled`` is moved on by the net."""
        end = self.filled + keys.shape[2]
        self.keys[layer, :, :, self.filled : end] = keys
        self.values[layer, :, :, self.filled : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class TalkerNet(nn.Module):
    """The Talker as it is trained: a small Llama with factorised embedding and head.

    ``embedding(id) = code_embed[id // 3]``, ``logit(id) = h . head_code[id // 3] + h . head_advance[id % 3]``; BOS, EOS
    and the unused ids have rows of their own (``head_special``, in this order).
    """

    def __init__(self, config: TalkerConfig | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        config = config or TalkerConfig()
        self.config = config
        self.dropout = dropout
        width = config.width
        self.conditioner = Conditioner(width, len(config.voices), None)
        self.thinkers = nn.ModuleList(nn.Linear(hidden, width, bias=False) for _, hidden in config.thinkers)
        self.code_embed = nn.Parameter(torch.empty(CODES, width))
        self.start_embed = nn.Parameter(torch.empty(width))
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.head_code = nn.Parameter(torch.empty(CODES, width))
        self.head_advance = nn.Parameter(torch.empty(ADVANCES, width))
        self.head_special = nn.Parameter(torch.empty(_SPECIALS, width))
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2 and name != "start_embed":
                continue
            deep = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if deep else 0.02)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens (ids under BOS, or BOS itself) [...] to embeddings [..., width]."""
        codes = torch.div(tokens.clamp(max=BOS - 1), ADVANCES, rounding_mode="floor")
        return torch.where((tokens == BOS)[..., None], self.start_embed, F.embedding(codes, self.code_embed))

    def forward(self, rows: Tensor, cache: Cache | None = None) -> Tensor:
        """Input rows (embedding + condition) [B, T, width] to final states of the same shape."""
        start = cache.filled if cache is not None else 0
        cos, sin = self._rope(start, rows.shape[1], rows.device)
        x = F.dropout(rows, self.dropout, self.training)
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, self.dropout, cache, layer)
        if cache is not None:
            cache.filled += rows.shape[1]
        return cast(Tensor, self.norm(x))

    def _rope(self, start: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        half = self.config.width // self.config.heads // 2
        frequency = self.config.rope_theta ** (-torch.arange(half, device=device).float() / half)
        angle = torch.arange(start, start + count, device=device).float()[:, None] * frequency
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    def factors(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of codes [..., 4375], advances [..., 3] and (BOS, EOS, unused) [..., 3]."""
        return (
            states @ self.head_code.T.to(states.dtype),
            states @ self.head_advance.T.to(states.dtype),
            states @ self.head_special.T.to(states.dtype),
        )

    def loss(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy per position and whether the code is the likeliest one; states [N, width], tokens [N]."""
        code, advance, special = (part.float() for part in self.factors(states))
        unused = special[:, 2] + math.log(_UNUSED)
        total = torch.logsumexp(
            torch.stack((code.logsumexp(-1) + advance.logsumexp(-1), special[:, 0], special[:, 1], unused)), 0
        )
        plain = tokens.clamp(max=BOS - 1)
        codes = torch.div(plain, ADVANCES, rounding_mode="floor")
        chosen = code.gather(1, codes[:, None])[:, 0] + advance.gather(1, (plain % ADVANCES)[:, None])[:, 0]
        chosen = torch.where(tokens == EOS, special[:, 1], chosen)
        return total - chosen, (code.argmax(-1) == codes) & (tokens != EOS)

    def full_tables(self) -> tuple[Tensor, Tensor]:
        """Embedding and head multiplied out to [VOCABULARY, width] float32, as :func:`export_hf` writes them."""
        width = self.config.width
        embedding = torch.zeros(VOCABULARY, width)
        embedding[:BOS] = self.code_embed.detach().float().repeat_interleave(ADVANCES, 0)
        embedding[BOS] = self.start_embed.detach().float()
        head = torch.empty(VOCABULARY, width)
        codes, advances = self.head_code.detach().float(), self.head_advance.detach().float()
        head[:BOS] = (codes[:, None] + advances[None]).flatten(0, 1)
        head[BOS:] = self.head_special.detach().float()[2]
        head[BOS], head[EOS] = self.head_special.detach().float()[:2]
        return embedding, head


def load_talker(weights_dir: Path | str = WEIGHTS_DIR) -> TalkerNet:
    """The trained Talker in its training form, float32 on CPU, in evaluation mode."""
    weights_dir = Path(weights_dir)
    net = TalkerNet(load_voice_config(weights_dir).talker)
    net.load_state_dict(load_tensors(weights_dir / TALKER_FILE))
    return net.eval().requires_grad_(False)


def export_hf(weights_dir: Path | str, out_dir: Path | str) -> None:
    """Write the Talker as a bf16 ``LlamaForCausalLM`` (untied head): ``config.json`` and ``model.safetensors``."""
    net = load_talker(weights_dir)
    config = net.config
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    embedding, head = net.full_tables()
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": net.norm.weight}
    for index, module in enumerate(net.blocks):
        block = cast(_Block, module)
        prefix = f"model.layers.{index}"
        query, key, value = block.qkv.weight.chunk(3)
        gate, up = block.gate_up.weight.chunk(2)
        tensors |= {
            f"{prefix}.input_layernorm.weight": block.attention_norm.weight,
            f"{prefix}.self_attn.q_proj.weight": query,
            f"{prefix}.self_attn.k_proj.weight": key,
            f"{prefix}.self_attn.v_proj.weight": value,
            f"{prefix}.self_attn.o_proj.weight": block.out.weight,
            f"{prefix}.post_attention_layernorm.weight": block.mlp_norm.weight,
            f"{prefix}.mlp.gate_proj.weight": gate,
            f"{prefix}.mlp.up_proj.weight": up,
            f"{prefix}.mlp.down_proj.weight": block.down.weight,
        }
    cast_tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(cast_tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(_hf_config(config), indent=2) + "\n", encoding="utf-8")


def _hf_config(config: TalkerConfig) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": config.width,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.width // config.heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "use_cache": True,
    }
