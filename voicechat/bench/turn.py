"""What is known of one turn, whichever way it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from voicechat.bench.measures import Continuity

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question as text and, if it is asked aloud, as sound: float32 mono ``[n]`` at ``rate`` Hz."""

    text: str
    sound: Floats | None = None
    rate: int = 0


@dataclass(slots=True)
class Turn:
    """One question and its answer. ``figures`` in seconds unless the name says otherwise; ``error`` if it failed."""

    question: str
    answer: str = ""
    heard: str | None = None
    error: str | None = None
    audio_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    continuity: Continuity | None = None

    def note(self, **figures: float | None) -> None:
        """Take figures; those that are None were not taken."""
        self.figures.update({name: value for name, value in figures.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def stages_of(response: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each stage, as a realtime response's metadata tells them."""
    told = (response.get("metadata") or {}).items()
    return {name.removesuffix("_ms"): float(value) / 1000 for name, value in told if name.endswith("_ms")}
