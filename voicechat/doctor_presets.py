"""Which of the models in ``configs/`` the GPUs of this machine hold, by the memory that each stage is given."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from voicechat.config import Settings, load_settings, model_names
from voicechat.config_sources import ConfigError
from voicechat.doctor_findings import Finding, Level
from voicechat.gpus import STAGES, place, rows_place

_WIDEST = 4096
"""A bound on the width of a hidden row: how wide they are a model's files say, which need not be here."""


class Gpu(NamedTuple):
    """A GPU and all of its memory."""

    name: str
    memory_mb: int


def gpus() -> list[Gpu]:
    """Those that nvidia-smi names; none where there is no such program."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = [line.rsplit(",", 1) for line in done.stdout.splitlines() if done.returncode == 0 and "," in line]
    return [Gpu(name.strip(), int(memory)) for name, memory in found if memory.strip().isdigit()]


def needs(settings: Settings) -> dict[int, int]:
    """Megabytes that a model takes of each GPU, by its number; nothing on the CPU."""
    if settings.device != "cuda":
        return {}
    sizes: dict[int, int] = {}
    for stage in STAGES:
        where = place(settings, stage)
        if where.on_gpu:
            sizes[where.gpu or 0] = sizes.get(where.gpu or 0, 0) + where.memory_mb
    pool = settings.pool
    if rows_place(settings) != "host":
        sizes[settings.talker.gpu] += pool.slots * pool.max_rows * (2 * _WIDEST + 8) >> 20
    return {gpu: size + settings.gpu.spare_mb for gpu, size in sizes.items()}


def presets(_settings: Settings, look: Callable[[], Iterable[Gpu]] = gpus) -> Iterator[Finding]:
    """One finding: names of the models that fit, and what the others need."""
    here = list(look())
    fit, others = [], []
    for name in model_names():
        try:
            wanted = needs(load_settings(name, environ={}))
        except ConfigError as error:
            others.append(f"{name} ({error})")
            continue
        if all(number < len(here) and here[number].memory_mb >= size for number, size in wanted.items()):
            fit.append(name)
        else:
            sizes = " and ".join(f"{size / 1024:.0f} GiB" for _, size in sorted(wanted.items()))
            others.append(f"{name} ({sizes} of GPU memory)")
    shown = ", ".join(f"{gpu.name} with {gpu.memory_mb / 1024:.0f} GiB" for gpu in here) or "no GPU"
    left = f"; not {', '.join(others)}" if others else ""
    yield Finding("presets", Level.OK, f"{shown}: {', '.join(fit)} fit{left}")
