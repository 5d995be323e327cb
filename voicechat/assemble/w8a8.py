"""W8A8 in the compressed-tensors format ``int-quantized``: what the config says, and quantising a whole folder.

Linear layers and the output matrix get int8 weights with one scale per output channel; activations are quantised as
they come, per token. On CPUs without bfloat16 instructions this is two to four times the speed of bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from voicechat.assemble.store import AssembleError, new_file

_BLOCK_ROWS = 1 << 13

QUANTIZATION_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear", "re:.*lm_head"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
    "ignore": [],
}
"""``quantization_config`` of config.json."""


def is_linear(name: str) -> bool:
    """Whether the tensor of this Hugging Face name is quantised."""
    return name.endswith("_proj.weight") or name == "lm_head.weight"


def quantize_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 per row (output channel) of float32: ``values[o, i] ~ q[o, i] * scale[o, 0]``, scales bfloat16."""
    low, high = values.aminmax(dim=1, keepdim=True)
    scale = (torch.maximum(-low, high) / 127).clamp(min=1e-12).bfloat16()
    return (values / scale.float()).round_().clamp_(-127, 127).to(torch.int8), scale


def int8_tensors(name: str, values: Tensor) -> dict[str, Tensor]:
    """One matrix as int8 weight ``[out, in]`` and bfloat16 scale ``[out, 1]``, by their names."""
    parts = [quantize_rows(block) for block in values.split(_BLOCK_ROWS)]  # not all at once, to save memory
    quantized, scales = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return {name: quantized, f"{name}_scale": scales}


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write ``tensors`` as transformers and vLLM read them."""
    save_file(tensors, path, metadata={"format": "pt"})


def quantize_folder(folder: Path) -> None:
    """Turn a small bfloat16 Hugging Face folder (one model.safetensors, untied head) into W8A8, in place.

    Raises AssembleError if it has another form.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("tie_word_embeddings", True) or "quantization_config" in config:
        raise AssembleError(f"{folder}: only plain models with an output matrix of their own can be quantised")
    tensors: dict[str, Tensor] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        if values.dtype != torch.bfloat16:
            raise AssembleError(f"{folder}: {name} is {values.dtype}, not bfloat16")
        tensors |= int8_tensors(name, values.float()) if is_linear(name) else {name: values}
    with new_file(folder / "model.safetensors") as unfinished:
        save(unfinished, tensors)
    config["quantization_config"] = QUANTIZATION_CONFIG
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
