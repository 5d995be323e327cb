"""Pools of which a test needs only a part."""

from __future__ import annotations

from typing import Any

from voicechat.contract.pool import PoolSpec


def small_pool(**sizes: Any) -> PoolSpec:
    """A pool of its own name in which all that is not given is as small as can be."""
    least: dict[str, Any] = dict.fromkeys(
        ("slots", "hidden_size", "max_rows", "max_text_rows", "pcm_samples", "bays", "bay_samples"), 1
    )
    return PoolSpec(name=PoolSpec.new_name(), **{**least, **sizes})
