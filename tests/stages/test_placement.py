"""Which GPUs a process sees, how its engine is set up, and whether the memory is there."""

from __future__ import annotations

from typing import Any

import pytest
import vllm

from voicechat.stages.placement import (
    MIB,
    OverBudget,
    Placement,
    check_budgets,
    see_gpus,
)
from voicechat.stages.vllm.adapter import UnknownVllm
from voicechat.stages.vllm.engine import engine_options
from voicechat.stages.vllm.host import prepare_engine

SCHEDULER = "voicechat.stages.vllm.scheduler.AckScheduler"


@pytest.fixture
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import platforms

    class Platform:
        @staticmethod
        def get_device_total_memory() -> int:
            return 100_000 * MIB

    monkeypatch.setattr(platforms, "current_platform", Platform)


def test_the_own_gpu_comes_first() -> None:
    here = Placement(gpu=2, rows_gpu=1)
    assert (here.gpus, here.rows_device) == ([2, 1], 1)
    same = Placement(gpu=2, rows_gpu=2)
    assert (same.gpus, same.rows_device) == ([2], 0)
    assert Placement().gpus == []


@pytest.mark.parametrize(
    ("given", "gpus", "seen"), [("", [1, 0], "1,0"), ("4,7", [1, 0], "7,4"), ("GPU-a,GPU-b", [1], "GPU-b")]
)
def test_a_process_sees_its_gpus_only(given: str, gpus: list[int], seen: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": given} if given else {}
    see_gpus(gpus, environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == seen


def test_a_gpu_that_the_server_does_not_see() -> None:
    with pytest.raises(ValueError, match="GPU 3 is not among CUDA_VISIBLE_DEVICES=4,7"):
        see_gpus([0, 3], {"CUDA_VISIBLE_DEVICES": "4,7"})


def test_the_cpu_needs_no_gpu_in_its_environment() -> None:
    environ: dict[str, str] = {}
    prepare_engine(Placement(), environ)
    assert not {name for name in environ if "CUDA" in name or "RUNNER" in name}
    prepare_engine(Placement(gpu=1, runner="v1"), environ)
    assert environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_an_engine_on_the_cpu_knows_its_tokens_first() -> None:
    options = engine_options(Placement(), SCHEDULER, embeddings=True)
    assert options == {
        "enforce_eager": True,
        "block_size": 32,
        "async_scheduling": False,
        "scheduler_cls": SCHEDULER,
        "enable_prompt_embeds": True,
    }


@pytest.mark.usefixtures("_a_gpu")
@pytest.mark.parametrize(
    ("runner", "embeddings", "enabled"), [("v1", True, True), ("v2", True, False), ("v1", False, False)]
)
def test_an_engine_on_a_gpu(runner: Any, embeddings: bool, enabled: bool) -> None:
    place = Placement(gpu=0, memory_mb=25_000, runner=runner)
    options = engine_options(place, SCHEDULER, embeddings=embeddings)
    assert options["scheduler_cls"] == "voicechat.stages.vllm.scheduler.AsyncAckScheduler"
    assert options["async_scheduling"] is True
    assert options["enforce_eager"] is False
    assert options["enable_prompt_embeds"] is enabled
    assert options["gpu_memory_utilization"] == pytest.approx(0.25)
    assert options["compilation_config"]["mode"] == 0


@pytest.mark.usefixtures("_a_gpu")
def test_graphs_and_scheduling_ahead_can_be_turned_off() -> None:
    place = Placement(gpu=0, memory_mb=25_000, graphs=False, async_scheduling=False)
    options = engine_options(place, SCHEDULER, embeddings=True)
    assert options["scheduler_cls"] == SCHEDULER
    assert options["enforce_eager"] is True
    assert "compilation_config" not in options


def test_the_names_of_schedulers_lead_somewhere() -> None:
    from voicechat.stages.vllm import scheduler

    for name in ("AckScheduler", "GatedScheduler"):
        assert hasattr(scheduler, name) and hasattr(scheduler, f"Async{name}")


def test_a_vllm_that_nobody_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    with pytest.raises(UnknownVllm, match=r"0\.99\.0"):
        engine_options(Placement(), SCHEDULER, embeddings=False)


def test_memory_that_fits_and_memory_that_does_not() -> None:
    budgets = {0: {"thinker": 600, "talker": 300}, 1: {"voicebox": 100}}
    memory = {0: (1000 * MIB, 2000 * MIB), 1: (50 * MIB, 2000 * MIB)}
    check_budgets({0: budgets[0]}, memory)
    with pytest.raises(OverBudget) as raised:
        check_budgets(budgets, memory)
    text = str(raised.value)
    assert text == "GPU 1: voicebox 100 = 100 MiB are configured, but 50 of 2000 MiB are free"
