"""The Talker's process with its conditioning on the device, as on a GPU: the same codes as the reference's.

The device is the CPU here, which proves everything but the streams.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from tests.stages import test_talker as plain
from tests.stages.ahead_setup import interpret, schedule_ahead
from tests.stages.hosts import StageHost, run_talker_in_short_windows
from voicechat.assemble import AssembledPaths
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.talker import Conditioner
from voicechat.stages.talker import TalkerConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _tell(**more: Any) -> None:
    """Let this process set its engine up as on a GPU: conditioning on the device, and ``more`` options."""
    from vllm.engine import arg_utils

    from voicechat.stages.vllm.bookkeeping import CONFIG_KEY

    made: Any = arg_utils.AsyncEngineArgs

    def told(**options: Any) -> Any:
        options["additional_config"][CONFIG_KEY]["on_device"] = True
        return made(**{**options, **more})

    arg_utils.AsyncEngineArgs = told  # type: ignore[assignment,misc]


def run_on_device(sock: socket.socket, config: TalkerConfig) -> None:
    """The Talker's process, told that its conditioning belongs on the device."""
    _tell()
    run_talker_in_short_windows(sock, config)


def run_second_runner(sock: socket.socket, config: TalkerConfig, **more: Any) -> None:
    """The same with vLLM's second model runner, whose embeddings are the hook's own."""
    interpret()
    _tell(enable_prompt_embeds=False, **more)
    run_talker_in_short_windows(sock, config)


def run_second_runner_ahead(sock: socket.socket, config: TalkerConfig) -> None:
    """And with steps scheduled before the tokens that they consume are known, which vLLM's CPU build forbids."""
    schedule_ahead()
    run_second_runner(sock, config, scheduler_cls="tests.stages.ahead.CountingScheduler")


@asynccontextmanager
async def running_as(
    run: Callable[[socket.socket, TalkerConfig], None], models: AssembledPaths
) -> AsyncIterator[plain.Running]:
    from transformers import LlamaForCausalLM

    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=plain.SLOTS,
        hidden_size=plain.HIDDEN,
        max_rows=64,
        max_text_rows=256,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
    )
    config = TalkerConfig(
        family="embedded",
        model={**models.facts.talker, "dtype": "float32"},
        pool=spec,
        max_num_seqs=plain.SLOTS,
        max_model_len=plain.MAX_LEN,
        kv_cache_bytes=plain.BLOCKS * plain.BLOCK_BYTES,
        sampling={"temperature": 0.0, "top_k": 0},
        threads=1,
        log_level=40,
    )
    pool = Pool(spec, create=True)
    host = StageHost("talker", run, config)
    try:
        await host.stage.start()
        llama = LlamaForCausalLM.from_pretrained(config.model["folder"], dtype=torch.float32).eval()
        conditioner = Conditioner.from_weights(models.folders["weights"], "smollm2-135m")
        yield plain.Running(host, pool, llama, conditioner, 0)
    finally:
        await host.stage.stop()
        pool.close()


@pytest.mark.parametrize("run", [run_second_runner, run_second_runner_ahead])
async def test_the_second_model_runner(stage_host: None, plain_models: AssembledPaths, run: Any) -> None:
    """Replies that come one after another, side by side and slowly; a slot's next reply after its last."""
    rng = random.Random(4)
    async with running_as(run, plain_models) as running:
        for texts in (plain.TEXTS[3:5], plain.TEXTS[3:4]):
            numbers = [running.begin(slot) for slot in range(len(texts))]
            await asyncio.gather(
                *(
                    running.say(n, plain.pieces_of(t), lambda: rng.random() * 0.3)
                    for n, t in zip(numbers, texts, strict=True)
                ),
                running.host.released(*numbers),
            )
            for slot, number in enumerate(numbers):
                plain.check(running, number, slot, plain.pieces_of(texts[slot]))
        assert (int(running.pool.counters[0]) > 20) == (run is run_second_runner_ahead)


async def test_texts_that_come_slowly_and_at_random_times(stage_host: None, plain_models: AssembledPaths) -> None:
    """Six replies at once, some preempted and read again, and a slot's next reply after its last."""
    rng = random.Random(8)
    async with running_as(run_on_device, plain_models) as running:
        for turn in range(2):
            texts = plain.TEXTS[turn:] + plain.TEXTS[:turn]
            numbers = [running.begin(slot) for slot in range(plain.SLOTS)]
            paces = [
                lambda: 0.0,
                lambda: rng.random() * 0.2,
                lambda: 0.02,
                lambda: 0.1,
                lambda: rng.random() * 0.05,
                None,
            ]
            await asyncio.gather(
                *(running.say(n, plain.pieces_of(t), p) for n, t, p in zip(numbers, texts, paces, strict=True)),
                running.host.released(*numbers),
            )
            for slot, number in enumerate(numbers):
                plain.check(running, number, slot, plain.pieces_of(texts[slot]))
        assert int(running.pool.row_faults[0]) == 0
