"""From settings to places: which stage runs on which GPU, where rows lie, and what the keeper is told. Pure."""

from __future__ import annotations

from typing import Literal

from voicechat.config import Settings
from voicechat.contract.pool import PoolSpec
from voicechat.stages.keeper import KeeperConfig
from voicechat.stages.placement import Placement

StageName = Literal["thinker", "talker", "voicebox", "ears"]
STAGES: tuple[StageName, ...] = ("thinker", "talker", "voicebox", "ears")


def place(settings: Settings, stage: StageName) -> Placement:
    """Where a stage runs. Rows lie on the Talker's GPU: it reads each of them several times."""
    if settings.device == "cpu" or (stage == "ears" and not settings.ears_on_gpu):
        return Placement()
    mine, gpu = getattr(settings, stage), settings.gpu
    return Placement(
        gpu=mine.gpu,
        rows_gpu=settings.talker.gpu if stage == "thinker" and rows_place(settings) != "host" else None,
        memory_mb=mine.gpu_memory_mb,
        runner=gpu.runner,
        graphs=gpu.graphs,
        compiled=gpu.compiled,
        async_scheduling=gpu.async_scheduling,
    )


def rows_place(settings: Settings) -> Literal["host", "device", "either"]:
    """Where hidden rows may lie; with two GPUs the keeper finds out. A brain elsewhere makes none."""
    if settings.device == "cpu" or settings.brain.url is not None:
        return "host"
    if settings.thinker.gpu == settings.talker.gpu:
        return "device"
    return "either"


def keeper_config(settings: Settings, spec: PoolSpec, level: int) -> KeeperConfig | None:
    """What the keeper is told; None where there is nothing to keep."""
    if settings.device == "cpu":
        return None
    places = {name: where for name in STAGES if (where := place(settings, name)).on_gpu}
    rows_mb = -(-(spec.slots * spec.max_rows * (2 * spec.hidden_size + 8)) >> 20) if spec.rows != "host" else 0
    budgets: dict[int, dict[str, int]] = {}
    for name, where in places.items():
        budgets.setdefault(where.gpu or 0, {})[name] = where.memory_mb
    budgets[settings.talker.gpu]["rows"] = rows_mb
    for sizes in budgets.values():
        sizes["spare"] = settings.gpu.spare_mb
    return KeeperConfig(
        pool=spec,
        gpus=tuple(dict.fromkeys((settings.talker.gpu, settings.thinker.gpu))),
        peer=settings.gpu.peer,
        budgets=budgets,
        log_level=level,
    )
