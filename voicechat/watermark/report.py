"""What the detector says of a sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["marked", "not_marked", "silent", "too_short"]

FALSE_POSITIVE_RATE = 1e-6
"""A sound, or a span of it, counts as marked from this p-value down."""


@dataclass(frozen=True, slots=True)
class Span:
    """A marked stretch. ``payload`` is None where the code's check does not hold; ``speed`` 1.02 for 2 % too fast."""

    start_s: float
    end_s: float
    payload: int | None
    key_id: str
    p_value: float
    score: float
    speed: float


@dataclass(frozen=True, slots=True)
class Report:
    """All of a sound. ``p_value`` bounds the chance that a sound without the mark gets so good a score anywhere.

    ``scores``: for each second, the best of the windows whose middle lies in it, for any key.
    """

    duration_s: float
    outcome: Outcome
    p_value: float
    scores: tuple[float, ...]
    spans: tuple[Span, ...]

    @property
    def marked(self) -> bool:
        """Whether the sound, or some of it, carries a mark of one of the keys."""
        return self.outcome == "marked"
