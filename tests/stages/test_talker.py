"""The Talker's process against transformers: the same codes, whenever the text comes and whatever else is spoken."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
import torch

from tests.stages.hosts import StageHost, run_talker_in_short_windows, short_windows
from voicechat.assemble import AssembledPaths
from voicechat.contract.messages import Abort, Codes, Failed, Released, Speak, Spoken, Text
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.decoder import unpack_steps
from voicechat.models.embedded.frontend import TextFrontend
from voicechat.models.embedded.progress import Progress
from voicechat.models.embedded.speaking import SPARE_STEPS, STEPS_PER_SYMBOL
from voicechat.models.embedded.talker import BOS, EOS, LEFT, NONE_SYMBOL, RIGHT, Conditioner, split
from voicechat.stages.talker import TalkerConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

HIDDEN = 576
SLOTS = 6
MAX_LEN = 448
BLOCKS = 16
"""Blocks of 32 steps in the engine's cache: one long reply fits, six short ones at once do not."""
BLOCK_BYTES = 32 * 6 * 2 * 512 * 4
TEXTS = (
    "The capital of France is Paris.",
    "Hamlet was written by William Shakespeare.",
    "Plants make food from light, and air.",
    "Yes, of course!",
    "There are seven days in a week.",
    "The moon is made of rock. It has no air.",
)


@dataclass
class Running:
    host: StageHost
    pool: Pool
    llama: Any
    conditioner: Conditioner
    voice: int
    generation: int = 0
    number: int = 0

    def begin(self, slot: int, *, rows: bool = True) -> int:
        """Open an utterance; returns its number. The slot's hidden rows are random, as no two replies' are alike."""
        self.generation += 1
        self.number += 1
        self.pool.begin(slot, self.generation)
        noise = torch.randn(self.pool.spec.max_rows, HIDDEN, generator=torch.Generator().manual_seed(self.number))
        self.pool.hidden[slot] = (3 * noise).bfloat16().view(torch.uint16).numpy()
        self.host.send(Speak(self.number, slot, self.generation, self.voice, rows=rows))
        return self.number

    async def say(self, number: int, pieces: list[str], pause: Any = None) -> None:
        """Send a text, piece by piece, ``pause()`` seconds apart, and close it."""
        for piece in pieces:
            self.host.send(Text(number, (piece,), False, 0))
            if pause is not None:
                await asyncio.sleep(pause())
        self.host.send(Text(number, (), True, 0))

    def codes(self, number: int) -> list[int]:
        """Codes that came for an utterance."""
        return unpack_steps(self.steps(number))[0]

    def symbols(self, number: int) -> bytes:
        """The windows of symbols that came with them."""
        return unpack_steps(self.steps(number))[1]

    def steps(self, number: int) -> bytes:
        """The steps that came for an utterance."""
        return b"".join(message.steps for message in self.host.of(number, Codes))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(stage_host: None, plain_models: AssembledPaths) -> AsyncIterator[Running]:
    from transformers import LlamaForCausalLM

    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=SLOTS,
        hidden_size=HIDDEN,
        max_rows=64,
        max_text_rows=256,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
    )
    config = TalkerConfig(
        family="embedded",
        model={**plain_models.facts.talker, "dtype": "float32"},
        pool=spec,
        max_num_seqs=SLOTS,
        max_model_len=MAX_LEN,
        kv_cache_bytes=BLOCKS * BLOCK_BYTES,
        sampling={"temperature": 0.0, "top_k": 0},
        threads=1,
        log_level=40,
    )
    pool = Pool(spec, create=True)
    host = StageHost("talker", run_talker_in_short_windows, config)
    try:
        await host.stage.start()
        llama = LlamaForCausalLM.from_pretrained(config.model["folder"], dtype=torch.float32).eval()
        conditioner = Conditioner.from_weights(plain_models.folders["weights"], "smollm2-135m")
        yield Running(host, pool, llama, conditioner, 0)
    finally:
        await host.stage.stop()
        pool.close()


def pieces_of(text: str) -> list[str]:
    """Tokens as a Thinker writes them: words with the space before them, punctuation apart, and an empty one."""
    pieces = re.findall(r" ?\w+|[^\w\s]", text)
    return [*pieces[:2], "", *pieces[2:]]


@torch.inference_mode()
def reference(
    running: Running, slot: int, pieces: list[str], steps: int, *, hidden_states: bool = True
) -> tuple[list[int], bytes, int]:
    """Codes of at most ``steps`` steps by a plain loop over ``LlamaForCausalLM``, and how many windows they took.

    Between the two, for each code the nine symbols that were seen at its step.
    Where windows begin is the rule of :class:`Progress`, which has tests of its own. 0 windows: no end was found.
    """
    frontend = TextFrontend()
    rows = [row for piece in pieces for row in frontend.push(piece)] + frontend.finish()
    hidden = torch.from_numpy(running.pool.hidden[slot].copy()).view(torch.bfloat16).float()
    embed, token, past = running.llama.get_input_embeddings(), BOS, None
    progress: Progress = short_windows()
    progress.add_rows([row.symbol for row in rows])
    codes: list[int] = []
    symbols = b""
    windows = 1
    while len(codes) < steps:
        at = progress.pointer
        window = [
            rows[place].symbol if progress.base <= place < len(rows) else NONE_SYMBOL
            for place in range(at - LEFT, at + RIGHT + 1)
        ]
        state = hidden[None, min(rows[min(at, len(rows) - 1)].token, len(hidden) - 1)]
        added = running.conditioner(torch.tensor([window]), state, torch.tensor([hidden_states]), torch.tensor([0]))
        out = running.llama(
            inputs_embeds=(embed(torch.tensor([token])) + added)[None], past_key_values=past, use_cache=True
        )
        past, token = out.past_key_values, int(out.logits[0, -1].argmax())
        if token < BOS:
            code, advance = split(token)
            codes.append(code)
            symbols += bytes(window)
            restart = progress.step(advance)
        elif token == EOS:
            if progress.at_end:
                return codes, symbols, windows
            restart = progress.skip()
        else:
            restart = False
        if restart:
            token, past = BOS, None
            windows += 1
    return codes, symbols, 0


async def acknowledged_by_all(running: Running, numbers: list[int]) -> None:
    """The worker has let go of the slots of these replies: their lanes read the ack of the last window."""
    for slot, number in enumerate(numbers):
        (released,) = running.host.of(number, Released)
        for _ in range(1000):
            if int(running.pool.talker_ack[slot]) == released.ack:
                break
            await asyncio.sleep(0.01)
        assert int(running.pool.talker_ack[slot]) == released.ack


def symbols_of(pieces: list[str]) -> int:
    frontend = TextFrontend()
    return sum(len(frontend.push(piece)) for piece in pieces) + len(frontend.finish())


def check(running: Running, number: int, slot: int, pieces: list[str]) -> tuple[int, int]:
    """The codes of a finished utterance equal the reference's, to the end; returns their count, and its windows."""
    codes = running.codes(number)
    (spoken,) = running.host.of(number, Spoken)
    expected, symbols, windows = reference(running, slot, pieces, len(codes) + 1)
    assert running.symbols(number) == symbols[: 9 * len(codes)]
    if spoken.reason == "end":
        assert windows
        assert codes == expected
        assert len(set(codes)) > 5, "it says something"
    else:  # an untrained Talker finds no end: it is broken off at the bound, or when the engine's length is met
        assert len(codes) > min(symbols_of(pieces) * STEPS_PER_SYMBOL + SPARE_STEPS, MAX_LEN - 3)
        assert codes == expected[: len(codes)]
    return len(codes), windows


async def test_a_text_that_is_there_at_once(running: Running) -> None:
    number = running.begin(0)
    await running.say(number, pieces_of(TEXTS[0]))
    await running.host.released(number)
    check(running, number, 0, pieces_of(TEXTS[0]))


async def test_texts_that_come_slowly_and_at_random_times(running: Running) -> None:
    """Six replies at once, none in step with another; more than the cache holds, so that some are taken up again."""
    rng = random.Random(7)
    before = int(running.pool.counters[2])
    numbers = [running.begin(slot) for slot in range(SLOTS)]
    paces = [lambda: 0.0, lambda: rng.random() * 0.3, lambda: 0.02, lambda: 0.1, lambda: rng.random() * 0.05, None]
    await asyncio.gather(
        *(running.say(n, pieces_of(t), p) for n, t, p in zip(numbers, TEXTS, paces, strict=True)),
        running.host.released(*numbers),
    )
    steps = [check(running, number, slot, pieces_of(TEXTS[slot]))[0] for slot, number in enumerate(numbers)]
    read = int(running.pool.counters[2]) - before
    if sum(steps) > BLOCKS * 32 * 1.3:
        assert read > sum(steps) + 100, "nothing was computed again: no reply was ever preempted"


async def test_a_long_text_in_several_windows(running: Running) -> None:
    """Each begins anew at a sentence; while the text still comes, none begins before enough of it is there."""
    texts = ("One apple is red. Two pears are green. We like both.", TEXTS[5])
    numbers = [running.begin(slot) for slot in range(2)]
    await asyncio.gather(
        running.say(numbers[0], pieces_of(texts[0]), lambda: 0.2),
        running.say(numbers[1], pieces_of(texts[1])),
        running.host.released(*numbers),
    )
    for slot, number in enumerate(numbers):
        assert check(running, number, slot, pieces_of(texts[slot]))[1] != 1
    await acknowledged_by_all(running, numbers)


async def test_a_given_text_that_is_longer_than_the_pool_has_rows(running: Running) -> None:
    """It has no hidden states, is there at once, and leaves room behind itself as it is spoken."""
    pieces = pieces_of(" ".join([*TEXTS, "One apple is red. Two pears are green. We like both.", *TEXTS]))
    assert symbols_of(pieces) > running.pool.spec.max_text_rows * 1.2
    number = running.begin(1, rows=False)
    running.host.send(Text(number, tuple(pieces), True, 0))
    await running.host.released(number)
    (spoken,) = running.host.of(number, Spoken)
    codes = running.codes(number)
    expected, symbols, windows = reference(running, 1, pieces, len(codes) + 1, hidden_states=False)
    assert spoken.reason == "end"
    assert windows > 5
    assert codes == expected
    assert running.symbols(number) == symbols
    assert int(running.pool.text_ready[1]) < symbols_of(pieces) - 100


async def test_a_text_that_stalls_in_the_middle(running: Running) -> None:
    """The Talker waits where it is, never says what is not there yet, and goes on as if nothing had been."""
    pieces = pieces_of(TEXTS[1])
    number = running.begin(2)
    for piece in pieces[:4]:
        running.host.send(Text(number, (piece,), False, 0))
    await running.host.until(lambda: len(running.codes(number)) >= 1)
    await asyncio.sleep(1.0)
    halted = len(running.codes(number))
    await asyncio.sleep(0.5)
    assert len(running.codes(number)) == halted
    assert not running.host.of(number, Spoken)
    for piece in pieces[4:]:
        running.host.send(Text(number, (piece,), False, 0))
    running.host.send(Text(number, (), True, 0))
    await running.host.released(number)
    check(running, number, 2, pieces)


async def test_a_slot_shows_nothing_of_its_last_reply(running: Running) -> None:
    """The same slot again with a shorter text."""
    number = running.begin(5)
    await running.say(number, pieces_of(TEXTS[3]))
    await running.host.released(number)
    check(running, number, 5, pieces_of(TEXTS[3]))


@pytest.mark.parametrize("pieces", [[], ["", ""], ["..."], ["\n", " ", "***"]])
async def test_nothing_to_say(running: Running, pieces: list[str]) -> None:
    number = running.begin(1)
    await running.say(number, pieces)
    await running.host.released(number)
    assert running.host.of(number, Spoken) == [Spoken(number, "end")]
    assert running.codes(number) == []
    assert running.host.of(number, Released) == [Released(number, 0)]


async def test_a_text_that_is_too_long_is_refused(running: Running) -> None:
    number = running.begin(1)
    await running.say(number, ["supercalifragilistic "] * 40, lambda: 0.002)
    await running.host.released(number)
    (failed,) = running.host.of(number, Failed)
    assert failed.invalid
    assert failed.param == "max_tokens"
    assert int(running.pool.text_ready[1]) <= running.pool.spec.max_text_rows


@pytest.mark.parametrize("delay", [None, 0.0, 0.001, 0.01, 0.05, 0.3])
async def test_an_abort_lets_go_of_the_slot(running: Running, acknowledged: Any, delay: float | None) -> None:
    """However early it comes: even in one write with the text, when the engine has not begun yet."""
    number = running.begin(3)
    for piece in pieces_of(TEXTS[5]):
        running.host.send(Text(number, (piece,), False, 0))
    if delay is not None:
        await asyncio.sleep(delay)
    running.host.send(Abort(number))
    await running.host.released(number)
    (released,) = running.host.of(number, Released)
    if released.ack:
        await acknowledged(running.pool, "talker_ack", 3, released.ack)
    said = len(running.codes(number))
    await asyncio.sleep(0.1)
    assert len(running.codes(number)) == said


async def test_an_abort_before_any_text(running: Running) -> None:
    number = running.begin(3)
    running.host.send(Abort(number))
    await running.host.released(number)
    assert running.host.of(number, Released) == [Released(number, 0)]
    running.host.send(Text(number, ("late",), True, 0))
    number = running.begin(3)
    await running.say(number, pieces_of(TEXTS[3]))
    await running.host.released(number)
    check(running, number, 3, pieces_of(TEXTS[3]))


async def test_an_abort_while_it_waits_for_text(running: Running, acknowledged: Any) -> None:
    """The wholly held engine notices, and lets the slot go."""
    number = running.begin(4)
    running.host.send(Text(number, ("Hello", " there", ",", " my"), False, 0))
    await asyncio.sleep(0.5)
    running.host.send(Abort(number))
    await running.host.released(number)
    (released,) = running.host.of(number, Released)
    assert released.ack
    await acknowledged(running.pool, "talker_ack", 4, released.ack)
