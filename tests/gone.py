"""What a server of :mod:`tests.web.double_server` still holds of sessions whose clients have gone away."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

WITHIN = 2.0
"""Seconds after which nothing may be left, counted from when the server can know that the client is gone."""


def left(url: str) -> dict[str, Any]:
    """Places, tasks, live replies and objects of sessions."""
    with urllib.request.urlopen(f"{url}/left", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def assert_gone(url: str, before: dict[str, Any], within: float = WITHIN) -> None:
    """Wait until the server holds what it held ``before``, at most ``within`` seconds. Blocks."""
    begun = time.monotonic()
    while (now := left(url)) != before:
        assert time.monotonic() - begun < within, f"after {within} s there is still {now}; there was {before}"
        time.sleep(0.05)
