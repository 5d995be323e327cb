"""Programs and packages that tests need. Where one is missing its tests are skipped; in CI (``CI=true``) they fail."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

NODE_FOLDER = Path(os.environ.get("VOICECHAT_NODE") or Path(sys.prefix) / "node")
"""Where ``scripts/test`` installs what :file:`tests/clients/node/package.json` names."""


def missing(what: str) -> None:
    """End a test because ``what`` is not there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and in CI nothing is skipped", pytrace=False)
    pytest.skip(f"{what} is missing; scripts/test installs it")


def module(name: str) -> Any:
    """Import a module."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing(f"the module {name} ({error})")


def program(*names: str) -> str:
    """Path of the first program that is there; those of the Python environment come before all others."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    for name in names:
        if (found := shutil.which(name, path=path)) is not None:
            return found
    missing(names[0])
    raise AssertionError


def node_module(name: str) -> Path:
    """Folder of a package from npm."""
    folder = NODE_FOLDER / "node_modules" / name
    if not folder.is_dir():
        missing(f"{name} from npm")
    return folder
