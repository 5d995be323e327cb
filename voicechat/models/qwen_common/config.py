"""A published model's ``config.json``. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class CheckpointError(RuntimeError):
    """The folder is not what a stage can load; ``str()`` says what is wrong with it and what to do."""


def read_config(folder: Path, model_type: str) -> dict[str, Any]:
    """``config.json`` of a model of this type. Raises :class:`CheckpointError`."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} can't be read ({error.strerror}): is this the folder of a model?") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    found = config.get("model_type") if isinstance(config, dict) else None
    if found != model_type:
        raise CheckpointError(f"{folder} holds a model of type {found!r}, not {model_type!r}")
    return dict(config)
