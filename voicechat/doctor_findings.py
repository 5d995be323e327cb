"""What a check of the machine found."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How bad a finding is: ``FAIL`` keeps the server from starting, ``WARN`` makes it worse."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; ``advice`` says what to do unless all is well."""

    check: str
    level: Level
    text: str
    advice: str = ""
