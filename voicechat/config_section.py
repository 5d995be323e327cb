"""What every section of the settings is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from voicechat.contract.model_settings import Section as Section


def _split(value: object) -> object:
    """Let a comma-separated string stand for a list, as the environment and flags give it."""
    if isinstance(value, str):
        return [part.strip() for part in value.strip("[] ").split(",") if part.strip()]
    return value


StrList = Annotated[tuple[str, ...], BeforeValidator(_split)]
IntList = Annotated[tuple[int, ...], BeforeValidator(_split)]
