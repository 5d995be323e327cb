"""Families by name: the folders beside this file, and what installed packages offer."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util

from voicechat.contract.family import ENTRY_POINTS, Family, FamilyError


def find_family(name: str) -> Family:
    """The family that ``model.family`` names. Raises :class:`FamilyError` if there is none of that name."""
    if name.isidentifier() and importlib.util.find_spec(f"{__package__}.{name}.family") is not None:
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


def built_in() -> list[str]:
    """Names of the families of this package."""
    import pkgutil

    from voicechat import models

    return [
        module.name
        for module in pkgutil.iter_modules(models.__path__)
        if module.ispkg and importlib.util.find_spec(f"{models.__name__}.{module.name}.family") is not None
    ]
