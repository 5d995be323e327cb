"""Sets a process up so that its engines run on the CPU as they do on a GPU."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any


def interpret() -> None:
    """This process and its children run vLLM's second model runner on the CPU, whose kernels are interpreted there."""
    folder = str(Path(__file__).parent / "interpreted")
    os.environ["PYTHONPATH"] = os.pathsep.join((folder, *filter(None, [os.environ.get("PYTHONPATH")])))
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    runpy.run_path(str(Path(folder) / "sitecustomize.py"))


def schedule_ahead() -> None:
    """Undo that vLLM's CPU build turns asynchronous scheduling off."""
    from vllm.platforms.cpu import CpuPlatform

    checked = CpuPlatform.check_and_update_config.__func__

    def check(cls: Any, vllm_config: Any) -> None:
        checked(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check)  # type: ignore[method-assign,assignment]
