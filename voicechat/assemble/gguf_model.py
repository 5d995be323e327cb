"""From a GGUF file to a Hugging Face folder (safetensors, config, tokenizer) that vLLM and transformers load as it is.

Weights are dequantised and written as bfloat16, or as W8A8: int8 weights per output channel with dynamic int8
activations per token, in the compressed-tensors format ``int-quantized``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from torch import Tensor

from voicechat.assemble.gguf_tokenizer import write_tokenizer
from voicechat.assemble.progress import Reporter
from voicechat.assemble.smoothing import Smoothing
from voicechat.assemble.store import AssembleError
from voicechat.assemble.w8a8 import QUANTIZATION_CONFIG, int8_tensors, is_linear, save

Quantization = Literal["none", "int8"]

_BLOCK_VALUES = 1 << 23
_ARCHITECTURES = {"llama": ("llama", "LlamaForCausalLM"), "qwen2": ("qwen2", "Qwen2ForCausalLM")}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SKIPPED = {"rope_freqs.weight"}
_EMBEDDING = "model.embed_tokens.weight"


def convert(
    source: Path,
    target: Path,
    *,
    quantization: Quantization,
    tied: bool,
    reporter: Reporter,
    label: str = "model",
    smoothing: Smoothing | None = None,
) -> None:
    """Write the GGUF file ``source`` into the existing folder ``target``.

    ``tied`` says that embedding and output matrix are one in the original model: the output's copy, which GGUF files
    keep finer, then serves as both. ``smoothing`` is applied if weights become int8. Raises AssembleError for
    architectures and tensors that are not known here.
    """
    reader = gguf.GGUFReader(source)
    config = _config(reader, tied=tied)
    sources = {tensor.name: tensor for tensor in reader.tensors if tensor.name not in _SKIPPED}
    if tied and "output.weight" in sources:
        sources["token_embd.weight"] = sources.pop("output.weight")
    int8 = quantization == "int8"
    tensors: dict[str, Tensor] = {}
    with reporter.bar(f"convert {label}", sum(int(tensor.n_bytes) for tensor in sources.values())) as bar:
        for source_name, tensor in sources.items():
            name = hf_name(source_name)
            values = _values(tensor, _heads(name, config))
            if int8 and smoothing is not None:
                values = smoothing.apply(name, values)
            tensors |= int8_tensors(name, values) if int8 and is_linear(name) else {name: values.bfloat16()}
            if int8 and name == _EMBEDDING and "output.weight" not in sources:
                tensors |= int8_tensors("lm_head.weight", values)
            bar.advance(int(tensor.n_bytes))
        save(target / "model.safetensors", tensors)
    if int8:
        config["tie_word_embeddings"] = False
        config["quantization_config"] = QUANTIZATION_CONFIG
    special = write_tokenizer(reader, target)
    config["bos_token_id"], config["eos_token_id"] = special.bos, special.eos
    generation = {"bos_token_id": special.bos, "eos_token_id": list(special.ends), "pad_token_id": special.pad}
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", {k: v for k, v in generation.items() if v is not None})


def field(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    """A metadata value of the file, or ``default``."""
    entry = reader.get_field(key)
    return default if entry is None else entry.contents()


def _config(reader: gguf.GGUFReader, *, tied: bool) -> dict[str, Any]:
    architecture = field(reader, "general.architecture")
    if architecture not in _ARCHITECTURES:
        raise AssembleError(f"GGUF architecture {architecture!r} is not known; known are {', '.join(_ARCHITECTURES)}")
    model_type, name = _ARCHITECTURES[architecture]

    def get(key: str, default: Any = None) -> Any:
        value = field(reader, f"{architecture}.{key}", default)
        if value is None:
            raise AssembleError(f"the GGUF file has no {architecture}.{key}")
        return value

    heads = get("attention.head_count")
    config = {
        "architectures": [name],
        "model_type": model_type,
        "dtype": "bfloat16",
        "transformers_version": "5.0.0",
        "hidden_act": "silu",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": float(np.float32(get("attention.layer_norm_rms_epsilon"))),
        "rope_theta": float(get("rope.freq_base", 10_000.0)),
        "vocab_size": len(reader.get_field("tokenizer.ggml.tokens").data),
        "tie_word_embeddings": tied or not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.6g}")
    if model_type == "llama":
        config |= {"attention_bias": False, "mlp_bias": False, "head_dim": config["hidden_size"] // heads}
    else:
        config |= {"use_sliding_window": False}
    return config


def hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor of the llama family. Raises AssembleError if there is none."""
    stem, _, kind = name.rpartition(".")
    if found := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
        if found[2] in _BLOCK and kind in {"weight", "bias"}:
            return f"model.layers.{found[1]}.{_BLOCK[found[2]]}.{kind}"
    elif stem in _TOP and kind == "weight":
        return f"{_TOP[stem]}.weight"
    raise AssembleError(f"the GGUF tensor {name} is not known")


def _heads(name: str, config: dict[str, Any]) -> int:
    """Heads of a matrix whose rows llama.cpp has put in another order; 0 for all others."""
    if config["model_type"] == "llama" and name.endswith("q_proj.weight"):
        return int(config["num_attention_heads"])
    if config["model_type"] == "llama" and name.endswith("k_proj.weight"):
        return int(config["num_key_value_heads"])
    return 0


def _values(tensor: gguf.ReaderTensor, heads: int) -> Tensor:
    """The tensor in float32, in Hugging Face's row order; dequantised a block of rows at a time, to save memory."""
    data, kind = tensor.data, tensor.tensor_type
    values = torch.empty(tuple(int(size) for size in reversed(tensor.shape)), dtype=torch.float32)
    step = max(1, _BLOCK_VALUES // int(tensor.shape[0])) if data.ndim > 1 else len(data)
    for start in range(0, len(data), step):
        block = gguf.dequantize(data[start : start + step], kind).astype(np.float32)
        values[start : start + len(block)] = torch.from_numpy(block)
    if heads:
        values = values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    return values.contiguous()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
