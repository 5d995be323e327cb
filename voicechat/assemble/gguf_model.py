"""From a GGUF file to a Hugging Face folder (safetensors, config, tokenizer) that vLLM and transformers load as it is.

Weights are dequantised and written as bfloat16, or as W8A8: int8 weights per output channel with dynamic int8
activations per token, in the compressed-tensors format ``int-quantized``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np

from voicechat.assemble.gguf_tokenizer import write_tokenizer
from voicechat.assemble.progress import Reporter
from voicechat.assemble.smoothing import Smoothing
from voicechat.assemble.store import AssembleError
from voicechat.assemble.tensors import Floats, Job, TensorSpec, bfloat16, write_safetensors
from voicechat.assemble.w8a8 import QUANTIZATION_CONFIG, int8_job, is_linear

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
    jobs = _jobs(reader, config, quantization, tied=tied, smoothing=smoothing)
    if quantization == "int8":
        config["tie_word_embeddings"] = False
        config["quantization_config"] = QUANTIZATION_CONFIG
    total = sum(spec.nbytes for job in jobs for spec in job.specs)
    with reporter.bar(f"convert {label}", total) as bar:
        write_safetensors(target / "model.safetensors", jobs, bar.advance)
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


def _jobs(
    reader: gguf.GGUFReader,
    config: dict[str, Any],
    quantization: Quantization,
    *,
    tied: bool,
    smoothing: Smoothing | None,
) -> list[Job]:
    tensors = {tensor.name: tensor for tensor in reader.tensors if tensor.name not in _SKIPPED}
    if tied and "output.weight" in tensors:
        tensors["token_embd.weight"] = tensors.pop("output.weight")
    jobs = []
    for source, tensor in tensors.items():
        name = hf_name(source)
        heads = 0
        if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        int8 = quantization == "int8"
        jobs.append(_job(name, tensor, heads, int8=int8 and is_linear(name), smoothing=smoothing if int8 else None))
    if quantization == "int8" and "output.weight" not in tensors:
        jobs.append(_job("lm_head.weight", tensors["token_embd.weight"], 0, int8=True, smoothing=None))
    return jobs


def hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor of the llama family. Raises AssembleError if there is none."""
    stem, _, kind = name.rpartition(".")
    if found := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
        if found[2] in _BLOCK and kind in {"weight", "bias"}:
            return f"model.layers.{found[1]}.{_BLOCK[found[2]]}.{kind}"
    elif stem in _TOP and kind == "weight":
        return f"{_TOP[stem]}.weight"
    raise AssembleError(f"the GGUF tensor {name} is not known")


def _job(name: str, tensor: gguf.ReaderTensor, heads: int, *, int8: bool, smoothing: Smoothing | None) -> Job:
    """One tensor of the GGUF file as one tensor, or as int8 weight and scale. ``heads``: undo llama.cpp's row order."""
    shape = tuple(int(size) for size in reversed(tensor.shape))

    def rows() -> Iterator[Floats]:
        return _rows(tensor, heads) if smoothing is None else smoothing.apply(name, _rows(tensor, heads))

    if int8:
        return int8_job(name, shape, rows)
    return Job((TensorSpec(name, "BF16", shape),), lambda: (bfloat16(block).tobytes() for block in rows()))


def _rows(tensor: gguf.ReaderTensor, heads: int) -> Iterator[Floats]:
    """The tensor in float32, a block of rows at a time, in Hugging Face's row order."""
    data, kind = tensor.data, tensor.tensor_type
    if data.ndim == 1:
        yield gguf.dequantize(data, kind).astype(np.float32)
        return
    if heads:
        values = gguf.dequantize(data, kind).astype(np.float32)
        out, width = values.shape
        yield values.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)
        return
    step = max(1, _BLOCK_VALUES // int(tensor.shape[0]))
    for start in range(0, data.shape[0], step):
        yield gguf.dequantize(data[start : start + step], kind).astype(np.float32)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
