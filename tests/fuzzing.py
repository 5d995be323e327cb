"""Fuzzers: a short form in every run of the tests, and for as long as one likes with ``--minutes N``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

_AT_ONCE = 200


def fuzz(config: pytest.Config, check: Callable[[Any], None], inputs: SearchStrategy[Any], examples: int) -> int:
    """Try ``check`` on ``examples`` inputs, always the same; with ``--minutes`` on new ones until the time is over.

    How many were tried.
    """
    minutes = config.getoption("--minutes")
    until = time.monotonic() + minutes * 60
    tried = 0

    def one(value: Any) -> None:
        nonlocal tried
        tried += 1
        check(value)

    while True:
        bounds = settings(
            max_examples=_AT_ONCE if minutes else examples,
            deadline=None,
            database=None,
            derandomize=not minutes,
            suppress_health_check=list(HealthCheck),
        )
        bounds(given(inputs)(one))()
        if time.monotonic() >= until:
            return tried
