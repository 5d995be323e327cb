"""Where torchvision is that vLLM's models with eyes import.

On a GPU it is a package like others. Beside torch's CPU build PyPI's torchvision, which is made for CUDA, keeps its
operators to itself, and then ``import transformers`` fails in every process. So ``scripts/environment.sh`` puts it,
with the missing operators declared, into a folder of its own, which only the processes of these models see.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

FOLDER = "vision"
"""Beside ``bin`` in the environment."""


def find_torchvision() -> None:
    """Let this process and those it starts import torchvision; before transformers is imported.

    Raises RuntimeError, with what to do, if there is none.
    """
    if importlib.util.find_spec("torchvision") is not None:
        return
    folder = Path(sys.prefix) / FOLDER
    if not (folder / "torchvision").is_dir():
        raise RuntimeError(
            f"models with eyes need torchvision, and {folder} has none: "
            "scripts/serve installs it (install_vision of scripts/environment.sh)"
        )
    sys.path.append(str(folder))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(folder) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, str(folder)])
    if "transformers" in sys.modules:
        from transformers.utils import import_utils

        import_utils.is_torchvision_available.cache_clear()
