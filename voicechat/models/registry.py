"""Families by name: the folders beside this file, and what installed packages offer."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path

from voicechat.contract.family import ENTRY_POINTS, Family, FamilyError

_FOLDER = Path(__file__).resolve().parent


def built_in() -> list[str]:
    """Names of the families of this package."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/family.py"))


def find_family(name: str) -> Family:
    """The family that ``model.family`` names. Raises :class:`FamilyError` if there is none of that name."""
    if name in built_in():
        found: Family = importlib.import_module(f"{__package__}.{name}.family").FAMILY
        return found
    offered = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if name not in offered:
        names = ", ".join(sorted({*built_in(), *offered}))
        raise FamilyError(f"there is no family {name!r}; there are {names}")
    try:
        family: Family = offered[name].load()
    except (ImportError, AttributeError) as error:
        raise FamilyError(f"the family {name!r} ({offered[name].value}) can't be loaded: {error}") from error
    return family
