"""What every section of the settings is made of."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from voicechat.contract.model_settings import Section as Section


def _split(value: object) -> object:
    """Let a comma-separated string stand for a list, as the environment and flags give it."""
    if isinstance(value, str):
        return [part.strip() for part in value.strip("[] ").split(",") if part.strip()]
    return value


def http_address(value: str | None, example: str, path: str) -> str | None:
    """The address of a service over HTTP, without a trailing ``path`` that clients add by themselves.

    Raises ValueError that shows ``example``.
    """
    if value is None:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"not an address like {example}")
    return value.rstrip("/").removesuffix(path)


StrList = Annotated[tuple[str, ...], BeforeValidator(_split)]
IntList = Annotated[tuple[int, ...], BeforeValidator(_split)]
