"""The matrix of a Thinker that the packaged Talker was not trained with: its file, and which Talker it belongs to.

``voicechat train thinker`` writes ``projection.safetensors`` (one tensor, ``weight`` [Talker width, hidden size]) and
beside it ``projection.json``, the card read here. No torch is needed for that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from voicechat.contract.artifacts import sha256_file
from voicechat.contract.family import FamilyError

PROJECTION_FILE = "projection.safetensors"
FORMAT = 1
_TALKER_FILE = "talker.safetensors"


class ProjectionError(FamilyError):
    """A projection is missing, damaged, or made for another Thinker or Talker. ``str()`` says what to do."""


@dataclass(frozen=True, slots=True)
class ProjectionCard:
    """What a projection was fitted for. ``measured`` is for people: held-out losses and how they were got."""

    thinker: str
    hidden_size: int
    width: int
    talker_sha256: str
    measured: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def projection_file(path: Path) -> Path:
    """The safetensors file that is meant by its own path or by its folder."""
    path = path.expanduser().absolute()
    return path / PROJECTION_FILE if path.is_dir() else path


def talker_sha256(weights: Path) -> str:
    """What a card calls the Talker of a weights folder."""
    return sha256_file(weights / _TALKER_FILE)


def read_card(path: Path) -> ProjectionCard:
    """The card of a projection (its file or folder). Raises ProjectionError."""
    tensors = projection_file(path)
    card = tensors.with_suffix(".json")
    for file in (tensors, card):
        if not file.is_file():
            raise ProjectionError(f"{file} is missing; `voicechat train thinker --thinker NAME=DIR` makes it")
    try:
        content = json.loads(card.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ProjectionError(f"{card}: this version reads format {FORMAT}")
        return ProjectionCard(**content)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ProjectionError(f"{card} is not a projection's card: {error}") from None


def check_projection(path: Path, weights: Path, hidden_size: int) -> Path:
    """The projection's file, if it fits the Talker in ``weights`` and a Thinker ``hidden_size`` wide.

    Raises ProjectionError.
    """
    card = read_card(path)
    tensors = projection_file(path)
    if card.hidden_size != hidden_size:
        raise ProjectionError(
            f"{tensors} was fitted for {card.thinker}, whose hidden states are {card.hidden_size} wide; "
            f"those of the configured Thinker are {hidden_size} wide"
        )
    if card.talker_sha256 != talker_sha256(weights):
        raise ProjectionError(
            f"{tensors} belongs to other Talker weights than those in {weights}; "
            f"fit it anew: voicechat train thinker --thinker {card.thinker}=DIR"
        )
    return tensors
