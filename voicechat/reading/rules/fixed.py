"""Expressions that are read as they are always said."""

from __future__ import annotations

import re

from voicechat.reading.rules.rule import Rules, alternatives

RULES = Rules()


_FIXED = {
    "24/7": "twenty-four seven", "50/50": "fifty fifty", "9/11": "nine eleven", "Pan Am": "Pan am", "4K": "four K",
    "8K": "eight K",
}  # fmt: skip


@RULES.add(alternatives(list(_FIXED)))
def _fixed(found: re.Match[str]) -> str:
    return _FIXED[found.group()[len(found["lead"]) : len(found.group()) - len(found["tail"])]]
