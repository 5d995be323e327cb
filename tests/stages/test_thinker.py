"""The Thinker's process against transformers: its rows and its text, however the engine cuts the work up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from tests.stages.hosts import SMALL_BATCH, StageHost, run_thinker_in_small_batches
from voicechat.assemble import AssembledPaths
from voicechat.contract.messages import Abort, Failed, Generate, Piece, Released, Turn, Written
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.thinker import ChatPrompt
from voicechat.stages.thinker import ThinkerConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

HIDDEN = 576
ROWS = 64
SYSTEM = "You are a friendly voice assistant. You answer in one or two short sentences, and you never make lists."
QUESTIONS = (
    "What is the capital of France?",
    "Tell me a story about a dog that went to the sea, met a crab, and came home again with a shell. " * 4,
    "Who wrote Hamlet?",
    "How do plants make their food? Think of light, of water and of air, and say what they do with them. " * 3,
)
TOKENS = 40


@dataclass
class Running:
    host: StageHost
    pool: Pool
    reference: Any
    tokenizer: Any
    prompt: ChatPrompt
    generation: int = 0
    references: dict[str, tuple[list[int], torch.Tensor]] = field(default_factory=dict)

    def begin(self, slot: int) -> int:
        self.generation += 1
        self.pool.begin(slot, self.generation)
        return self.generation


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(stage_host: None, plain_models: AssembledPaths) -> AsyncIterator[Running]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=4,
        hidden_size=HIDDEN,
        max_rows=ROWS,
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
        system_prompt=SYSTEM,
        log_level=30,
    )
    pool = Pool(spec, create=True)
    host = StageHost("thinker", run_thinker_in_small_batches, config)
    try:
        await host.stage.start()
        tokenizer = AutoTokenizer.from_pretrained(plain_models.folders["thinker"])
        model = AutoModelForCausalLM.from_pretrained(plain_models.folders["thinker"], dtype=torch.float32).eval()
        yield Running(host, pool, model, tokenizer, ChatPrompt(tokenizer, SYSTEM))
    finally:
        await host.stage.stop()
        pool.close()


def reference(running: Running, question: str) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens of a reply, and the last hidden state at the position that predicts each: ``[tokens, HIDDEN]``."""
    if question not in running.references:
        running.references[question] = compute(running, question)
    return running.references[question]


def compute(running: Running, question: str) -> tuple[list[int], torch.Tensor]:
    ids = running.prompt.ids([Turn("user", question)])
    with torch.inference_mode():
        whole = running.reference.generate(
            torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False, repetition_penalty=1.0
        )[0].tolist()
        states = running.reference(torch.tensor([whole]), output_hidden_states=True).hidden_states[-1][0]
    return whole[len(ids) :], states[len(ids) - 1 : len(whole) - 1]


def rows(pool: Pool, slot: int, count: int) -> torch.Tensor:
    """Rows of a slot as float32."""
    return torch.from_numpy(pool.hidden[slot, :count].copy()).view(torch.bfloat16).float()


def check(running: Running, number: int, slot: int, question: str) -> Written:
    """Text, counts and rows of a finished reply are those of transformers."""
    tokens, states = reference(running, question)
    (written,) = running.host.of(number, Written)
    pieces = [piece for message in running.host.of(number, Piece) for piece in message.pieces]
    assert "".join(pieces) == running.tokenizer.decode(tokens, skip_special_tokens=True)
    assert len(pieces) == written.completion_tokens == len(tokens), "one piece for each token"
    assert int(running.pool.hidden_ready[slot]) == len(tokens)
    assert written.reason == ("length" if len(tokens) == TOKENS else "stop")
    got = rows(running.pool, slot, len(tokens))
    # the pool keeps bfloat16: 8 bits of precision
    torch.testing.assert_close(got, states, rtol=2**-8, atol=2e-3 * float(states.abs().max()))
    assert float((got - states).norm() / states.norm()) < 3e-3
    return written


async def test_replies_at_once_equal_transformers(running: Running) -> None:
    """Four replies together, prompts longer than a step, and too little memory for all: still the same rows."""
    before = int(running.pool.counters[0])
    for slot, question in enumerate(QUESTIONS):
        generation = running.begin(slot)
        running.host.send(Generate(10 + slot, (Turn("user", question),), True, slot, generation))
        await asyncio.sleep(0.05 * slot)
    await running.host.released(10, 11, 12, 13)
    prompts = [len(running.prompt.ids([Turn("user", question)])) for question in QUESTIONS]
    assert max(prompts) > 2 * SMALL_BATCH
    for slot, question in enumerate(QUESTIONS):
        check(running, 10 + slot, slot, question)
    made = sum(message.completion_tokens for slot in range(4) for message in running.host.of(10 + slot, Written))
    assert int(running.pool.counters[0]) - before >= made


async def test_a_cached_prompt_gives_the_same_rows(running: Running) -> None:
    """Asked again, most of the prompt comes from the prefix cache; the reply's rows are all there all the same."""
    for number in (20, 21):
        generation = running.begin(1)
        running.pool.hidden[1] = 0
        running.host.send(Generate(number, (Turn("user", QUESTIONS[3]),), True, 1, generation))
        await running.host.released(number)
    written = check(running, 21, 1, QUESTIONS[3])
    assert written.cached_tokens > written.prompt_tokens // 2


async def test_rows_are_there_when_their_piece_arrives(running: Running) -> None:
    generation = running.begin(2)
    running.host.send(Generate(30, (Turn("user", QUESTIONS[3]),), True, 2, generation))
    seen = 0
    while not running.host.of(30, Released):
        pieces = sum(len(message.pieces) for message in running.host.of(30, Piece))
        assert int(running.pool.hidden_ready[2]) >= pieces
        seen = max(seen, pieces)
        await asyncio.sleep(0.002)
    assert seen > 3


async def test_text_alone_writes_no_rows(running: Running) -> None:
    running.begin(3)
    running.pool.hidden[3] = 7
    running.host.send(Generate(40, (Turn("user", QUESTIONS[0]),), False, max_tokens=5))
    await running.host.released(40)
    (written,) = running.host.of(40, Written)
    assert (written.reason, written.completion_tokens) == ("length", 5)
    assert running.host.of(40, Released) == [Released(40, 0)]
    assert (running.pool.hidden[3] == 7).all()


async def test_rows_never_leave_their_slot(running: Running) -> None:
    """A reply is cut at the slot's end; the next slot stays as it was."""
    generation = running.begin(0)
    running.pool.hidden[1] = 7
    turns = (Turn("user", "Count from one to two hundred, every number."),)
    running.host.send(Generate(45, turns, True, 0, generation, max_tokens=300))
    await running.host.released(45)
    (written,) = running.host.of(45, Written)
    assert written.completion_tokens <= ROWS
    assert int(running.pool.hidden_ready[0]) == written.completion_tokens
    assert (running.pool.hidden[1] == 7).all()


@pytest.mark.parametrize("delay", [None, 0.0, 0.001, 0.01, 0.05, 0.2])
async def test_an_abort_lets_go_of_the_slot(running: Running, acknowledged: Any, delay: float | None) -> None:
    """However early it comes: even in one write with the request, which the host then has not begun yet."""
    number = 300 if delay is None else 301 + round(1000 * delay)
    generation = running.begin(2)
    running.host.send(Generate(number, (Turn("user", QUESTIONS[1]),), True, 2, generation))
    if delay is not None:
        await asyncio.sleep(delay)
    running.host.send(Abort(number))
    await running.host.released(number)
    (released,) = running.host.of(number, Released)
    if released.ack:
        await acknowledged(running.pool, "thinker_ack", 2, generation)
    before = running.pool.hidden[2].copy()
    await asyncio.sleep(0.1)
    assert np.array_equal(running.pool.hidden[2], before), "nothing is written after the acknowledgement"


async def test_a_finished_reply_lets_go_of_the_slot(running: Running, acknowledged: Any) -> None:
    generation = running.begin(1)
    running.host.send(Generate(60, (Turn("user", QUESTIONS[0]),), True, 1, generation, max_tokens=3))
    await running.host.released(60)
    assert running.host.of(60, Released) == [Released(60, generation)]
    await acknowledged(running.pool, "thinker_ack", 1, generation)


@pytest.mark.parametrize(
    ("number", "fields", "param"),
    [
        (80, {"turns": (Turn("user", "word " * 600),)}, "messages"),
        (81, {"max_tokens": 500}, "max_tokens"),
        (82, {"top_p": 0.0}, "messages"),
        (83, {"temperature": -1.0}, "messages"),
        (84, {"stop": ("",)}, "messages"),
    ],
)
async def test_what_cannot_be_run_is_refused(running: Running, number: int, fields: dict[str, Any], param: str) -> None:
    """The stage lives on, and the slot is free at once: the engine never saw the request."""
    generation = running.begin(0)
    asked = {"turns": (Turn("user", QUESTIONS[0]),), **fields}
    running.host.send(Generate(id=number, rows=True, slot=0, generation=generation, **asked))
    await running.host.released(number)
    (failed,) = running.host.of(number, Failed)
    assert failed.invalid
    assert failed.param == param
    assert running.host.of(number, Released) == [Released(number, 0)]
    assert not running.host.of(number, Written)


async def test_a_stop_string_ends_the_text_before_it(running: Running) -> None:
    tokens, _ = reference(running, QUESTIONS[3])
    text = running.tokenizer.decode(tokens, skip_special_tokens=True)
    word = text.split()[6]
    generation = running.begin(0)
    running.host.send(Generate(70, (Turn("user", QUESTIONS[3]),), True, 0, generation, stop=(word,)))
    await running.host.released(70)
    (written,) = running.host.of(70, Written)
    shown = "".join(piece for message in running.host.of(70, Piece) for piece in message.pieces)
    assert shown == text[: text.index(word)]
    assert written.reason == "stop"
    pieces = sum(len(message.pieces) for message in running.host.of(70, Piece))
    assert pieces == written.completion_tokens <= int(running.pool.hidden_ready[0])
