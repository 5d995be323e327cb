"""The Thinker's process as on a GPU: the second model runner, steps scheduled ahead, rows handed over by a writer."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import Any

import pytest
import torch

from tests.stages import test_thinker as plain
from tests.stages.ahead_setup import interpret, schedule_ahead
from tests.stages.hosts import StageHost
from voicechat.assemble import AssembledPaths
from voicechat.contract.messages import Generate, Piece, Turn
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.thinker import ChatPrompt
from voicechat.stages import thinker
from voicechat.stages.thinker import ThinkerConfig

TOKENS = 12


def run_ahead(sock: socket.socket, config: ThinkerConfig) -> None:
    """The Thinker's process, set up as on a GPU."""
    thinker.prepare_process(config.threads, config.log_level)
    thinker.prepare_engine(config.place)
    interpret()
    schedule_ahead()
    from vllm.engine import arg_utils

    made: Any = arg_utils.AsyncEngineArgs
    more = {
        "worker_cls": "tests.stages.ahead.HandingWorker",
        "scheduler_cls": "voicechat.stages.vllm.scheduler.AsyncAckScheduler",
        "async_scheduling": True,
    }
    arg_utils.AsyncEngineArgs = functools.partial(  # type: ignore[assignment,misc]
        lambda **options: made(**{**options, **more})
    )
    thinker.run_host(sock, lambda channel: thinker.Thinker(channel, config))


async def test_rows_and_words_equal_transformers(
    stage_host: None, plain_models: AssembledPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(plain, "TOKENS", TOKENS)
    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=2,
        hidden_size=plain.HIDDEN,
        max_rows=plain.ROWS,
        max_text_rows=64,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
    )
    config = ThinkerConfig(
        family="embedded",
        model={**plain_models.facts.thinker, "dtype": "float32"},
        rows_begin="predicting",
        ears=None,
        pool=spec,
        max_num_seqs=4,
        max_model_len=512,
        kv_cache_bytes=40 << 20,
        threads=1,
        default_max_tokens=TOKENS,
        temperature=0.0,
        top_p=1.0,
        repetition_penalty=1.0,
        system_prompt=plain.SYSTEM,
        log_level=30,
    )
    pool = Pool(spec, create=True)
    host = StageHost("thinker", run_ahead, config)
    try:
        await host.stage.start()
        tokenizer = AutoTokenizer.from_pretrained(plain_models.folders["thinker"])
        model = AutoModelForCausalLM.from_pretrained(plain_models.folders["thinker"], dtype=torch.float32).eval()
        running = plain.Running(host, pool, model, tokenizer, ChatPrompt(tokenizer, plain.SYSTEM))
        asked = (plain.QUESTIONS[0], plain.QUESTIONS[2])
        pool.hidden[:] = 0x7FC0  # not a number, in bfloat16
        for slot, question in enumerate(asked):
            host.send(Generate(10 + slot, (Turn("user", question),), True, slot, running.begin(slot)))
            await asyncio.sleep(0.3)
        await host.released(10, 11)
        for slot, question in enumerate(asked):
            tokens, states = plain.reference(running, question)
            pieces = [piece for message in host.of(10 + slot, Piece) for piece in message.pieces]
            assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=True)
            got = plain.rows(pool, slot, len(tokens))
            torch.testing.assert_close(got, states, rtol=2**-8, atol=2e-3 * float(states.abs().max()))
    finally:
        await host.stage.stop()
        pool.close()
