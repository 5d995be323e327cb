"""Where a stage's model runs, and whether the memory is there. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

MIB = 1 << 20


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one stage. ``gpu`` None: the CPU, and nothing else counts.

    ``gpu``: number of its GPU among those that the server sees; ``rows_gpu``: the GPU that holds the rows, if it is
    another; ``memory_mb``: all that the stage may take of its GPU. ``runner``: which of vLLM's model runners;
    ``compiled``: whether torch.compile goes over the model before CUDA graphs are captured of it.
    """

    gpu: int | None = None
    rows_gpu: int | None = None
    memory_mb: int = 0
    runner: Literal["v1", "v2"] = "v2"
    graphs: bool = True
    compiled: bool = False
    async_scheduling: bool = True

    @property
    def on_gpu(self) -> bool:
        """True if the stage runs on a GPU."""
        return self.gpu is not None

    @property
    def rows_device(self) -> int:
        """Number of the rows' GPU among those that the stage's process sees."""
        return 0 if self.rows_gpu is None or self.rows_gpu == self.gpu else 1

    @property
    def gpus(self) -> list[int]:
        """GPUs that the stage's process has to see, its own first."""
        if self.gpu is None:
            return []
        return [self.gpu] if not self.rows_device else [self.gpu, self.rows_gpu or 0]


def see_gpus(gpus: Sequence[int], environ: Any = os.environ) -> None:
    """Let this process see these GPUs and no others; before torch is imported. Raises ValueError for a wrong number."""
    given = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    try:
        names = [given[gpu] if given else str(gpu) for gpu in gpus]
    except IndexError:
        raise ValueError(f"GPU {max(gpus)} is not among CUDA_VISIBLE_DEVICES={','.join(given)}") from None
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def stage_device(place: Placement) -> Any:
    """Where a stage without an engine runs, as torch's device; of a GPU it takes no more than its place's memory."""
    import torch

    return bounded_gpu(place) if place.on_gpu else torch.device("cpu")


def bounded_gpu(place: Placement) -> Any:
    """The first GPU that this process sees, as torch's device, of which it takes no more than the place's memory."""
    import torch

    device = torch.device("cuda", 0)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, place.memory_mb * MIB / total), device)
    return device


class OverBudget(RuntimeError):
    """The configured memory does not fit; ``str()`` lists who wants how much of which GPU."""


def check_budgets(budgets: Mapping[int, Mapping[str, int]], memory: Mapping[int, tuple[int, int]]) -> None:
    """Compare MiB by GPU and stage with (free, total) bytes of each GPU. Raises :class:`OverBudget`."""
    faults = []
    for gpu, stages in sorted(budgets.items()):
        free, total = memory[gpu]
        wanted = sum(stages.values())
        if wanted * MIB > free:
            parts = " + ".join(f"{name} {size}" for name, size in stages.items())
            faults.append(
                f"GPU {gpu}: {parts} = {wanted} MiB are configured, but {free // MIB} of {total // MIB} MiB are free"
            )
    if faults:
        raise OverBudget("; ".join(faults))
