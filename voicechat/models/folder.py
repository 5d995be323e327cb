"""What a Hugging Face folder of an LLM says of itself, read without loading anything of it. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from voicechat.contract.family import FamilyError

_WIDTH_KEYS = ("hidden_size", "n_embd", "d_model")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")


def hidden_size(folder: Path) -> int:
    """Width of the last hidden state. Raises FamilyError if ``config.json`` does not say."""
    width = _first_number(folder, _WIDTH_KEYS)
    if width is None:
        raise FamilyError(f"{folder / 'config.json'} has none of {', '.join(_WIDTH_KEYS)}: how wide is a hidden state?")
    return width


def context_length(folder: Path) -> int | None:
    """Positions for which the LLM was made, None if ``config.json`` does not say."""
    return _first_number(folder, _CONTEXT_KEYS)


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer knows how a conversation is written down for this LLM."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and bool(_read(path).get("chat_template"))


def _first_number(folder: Path, keys: tuple[str, ...]) -> int | None:
    config = _read(folder / "config.json")
    for section in (config, config.get("text_config", {})):
        for key in keys:
            if isinstance(section, dict) and isinstance(section.get(key), int):
                return int(section[key])
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FamilyError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise FamilyError(f"{path} does not hold a JSON object")
    return content
