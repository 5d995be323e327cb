"""Files of the trained voice: where they lie, how they are read and written.

A weights folder holds

* ``voice.json``: sizes of both nets, names of voices and Thinkers, advised sampling, what is known of the voices;
* ``talker.safetensors``: the Talker in its factorised training form (fp16);
* ``voicebox.safetensors``: the VoiceBox decoder (fp16);
* ``MODEL_CARD.md``: where they come from and what was measured.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS_DIR = Path(__file__).resolve().parent / "weights"
"""Weights that come with the package."""

VOICE_FILE = "voice.json"
TALKER_FILE = "talker.safetensors"
VOICEBOX_FILE = "voicebox.safetensors"
CARD_FILE = "MODEL_CARD.md"
FORMAT = 2
"""1 had a VoiceBox that made up its own phases."""
ABOUT_KEYS = ("name", "description", "gender", "language")
"""What ``voice.json`` may tell of a voice; ``language`` is a tag such as en-US."""


@dataclass(frozen=True, slots=True)
class TalkerConfig:
    """Shape of the Talker. ``voices`` and ``thinkers`` are ordered: their position is the row in the weights.

    ``thinkers`` holds pairs (name, width of the last hidden state).
    """

    layers: int = 6
    width: int = 512
    heads: int = 8
    feed_forward: int = 1024
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    max_positions: int = 4096
    voices: tuple[str, ...] = ("heart",)
    thinkers: tuple[tuple[str, int], ...] = (("smollm2-135m", 576), ("qwen2.5-coder-0.5b", 896))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TalkerConfig:
        """Config from the ``talker`` object of ``voice.json``. Raises ``TypeError`` on unknown fields."""
        values = dict(data)
        if "voices" in values:
            values["voices"] = tuple(values["voices"])
        if "thinkers" in values:
            values["thinkers"] = tuple((str(name), int(width)) for name, width in values["thinkers"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class VoiceBoxConfig:
    """Shape of the VoiceBox decoder: ``token_blocks`` run at 25 Hz, ``frame_blocks`` at 100 Hz.

    ``voices`` are as many as the Talker's, in the same order; a decoder of one voice has no embedding of it.
    """

    width: int = 384
    expansion: int = 2
    token_blocks: int = 3
    frame_blocks: int = 8
    voices: int = 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Advised sampling of the Talker's tokens; temperature 0 is greedy."""

    temperature: float = 0.3
    top_k: int = 50


@dataclass(frozen=True, slots=True)
class VoiceConfig:
    """Contents of ``voice.json``."""

    talker: TalkerConfig = field(default_factory=TalkerConfig)
    voicebox: VoiceBoxConfig = field(default_factory=VoiceBoxConfig)
    sampling: Sampling = field(default_factory=Sampling)
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is known of voices, by voice; keys are of :data:`ABOUT_KEYS`. Clients are shown it as it is."""

    def to_json(self) -> str:
        """The file's text."""
        data = {"format": FORMAT, **asdict(self)}
        if not self.about:
            del data["about"]
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> VoiceConfig:
        """Parse the file's text. Raises ``ValueError`` on another format, ``TypeError`` on unknown fields."""
        data = json.loads(text)
        if data.pop("format", None) != FORMAT:
            raise ValueError(f"{VOICE_FILE}: this version reads format {FORMAT}")
        return cls(
            talker=TalkerConfig.from_dict(data.get("talker", {})),
            voicebox=VoiceBoxConfig(**data.get("voicebox", {})),
            sampling=Sampling(**data.get("sampling", {})),
            about=_checked_about(data.get("about", {})),
        )


def _checked_about(about: Any) -> dict[str, dict[str, str]]:
    if not isinstance(about, dict) or not all(isinstance(known, dict) for known in about.values()):
        raise ValueError(f"{VOICE_FILE}: about must hold an object for each voice")
    for voice, known in about.items():
        wrong = [key for key, value in known.items() if key not in ABOUT_KEYS or not isinstance(value, str)]
        if wrong:
            raise ValueError(f"{VOICE_FILE}: about {voice}: only texts for {', '.join(ABOUT_KEYS)}, not {wrong[0]}")
    return about


def load_voice_config(weights_dir: Path | str = WEIGHTS_DIR) -> VoiceConfig:
    """Read ``voice.json``. Raises ``FileNotFoundError`` when the folder holds no weights."""
    return VoiceConfig.from_json((Path(weights_dir) / VOICE_FILE).read_text(encoding="utf-8"))


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def load_tensors(path: Path | str, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Tensors of a safetensors file; floating ones in ``dtype``."""
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(str(path)).items()
    }


def save_tensors(path: Path | str, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float16) -> None:
    """Write tensors atomically, floating ones in ``dtype``."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    cast = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().cpu().contiguous().clone()
        for name, tensor in tensors.items()
    }
    save_file(cast, str(temporary), metadata={"format": "pt"})
    temporary.replace(path)


def save_voice(
    directory: Path | str,
    config: VoiceConfig,
    talker: dict[str, torch.Tensor],
    voicebox: dict[str, torch.Tensor],
) -> None:
    """Write a whole weights folder (without the model card)."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_tensors(directory / TALKER_FILE, talker)
    save_tensors(directory / VOICEBOX_FILE, voicebox)
    write_atomic(directory / VOICE_FILE, config.to_json().encode())
