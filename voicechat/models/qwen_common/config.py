"""A published model's ``config.json``. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CheckpointError(RuntimeError):
    """The folder is not what a stage can load; ``str()`` says what is wrong with it and what to do."""


def read_config(folder: Path, model_type: str) -> dict[str, Any]:
    """``config.json`` of a model of this type. Raises :class:`CheckpointError`."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} can't be read ({error.strerror}): is this the folder of a model?") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    found = config.get("model_type") if isinstance(config, dict) else None
    if found != model_type:
        raise CheckpointError(f"{folder} holds a model of type {found!r}, not {model_type!r}")
    return dict(config)


def layer_fields(config: Mapping[str, Any], net: str, rope_theta: float) -> dict[str, Any]:
    """Of a net's part of ``config.json`` what its layers are like, defaults filled in as transformers does.

    ``rope_theta`` is the default. Raises ValueError if the layers of ``net`` are of another kind than ours.
    """
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{net} with hidden_act {config['hidden_act']!r} is not known")
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    return {
        "hidden_size": config["hidden_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "intermediate_size": config["intermediate_size"],
        "rms_norm_eps": config["rms_norm_eps"],
        "rope_theta": rope.get("rope_theta") or config.get("rope_theta", rope_theta),
        "attention_bias": config.get("attention_bias", False),
    }
