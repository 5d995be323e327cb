"""The joins between chunks can't be heard: real codes of the real Talker, cut as each mode cuts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.stages.streaming import chunks_of, exactly, streamed
from voicechat.app import chunk_policy
from voicechat.assemble import AssembledPaths
from voicechat.cascade.chunks import Chunk
from voicechat.config import Settings
from voicechat.models.embedded.alphabet import LOOK_AHEAD
from voicechat.models.embedded.decoder import pack_steps
from voicechat.models.embedded.frontend import read_text
from voicechat.models.embedded.talker import load_talker
from voicechat.models.embedded.voicebox import TOKEN_SAMPLES, VoiceBoxNet, load_voicebox
from voicechat.train.generate import Prompt, generate

TEXTS = (
    "Well, the weather was fine all week, so we sailed around the island and came home on Sunday, tired and happy.",
    "Yes. There are seven days in a week, and each of them has a name: Monday, Tuesday, Wednesday, and so on.",
    "She sells sea shells by the shore; does anybody ever buy them?",
)
NEAR = 240
"""Samples on either side of a join that are looked at: 10 ms."""


@pytest.fixture(scope="module")
def net(models: AssembledPaths) -> VoiceBoxNet:
    return load_voicebox(models.folders["weights"])


@pytest.fixture(scope="module")
def replies(models: AssembledPaths) -> list[tuple[list[int], bytes]]:
    """Codes of each text, and the windows of symbols at their steps."""
    prompts = [Prompt(torch.tensor([mark.symbol for mark in read_text(text)])) for text in TEXTS]
    made = generate(load_talker(models.folders["weights"]), prompts, temperature=0.3, seed=1)
    assert all(reply.ended and len(reply.codes) > 60 for reply in made)
    return [(reply.codes, reply.windows.to(torch.uint8).numpy().tobytes()) for reply in made]


def cut(mode: str, codes: list[int], symbols: bytes) -> list[Chunk]:
    """As the coordinator cuts a reply whose codes come one by one."""
    return chunks_of(chunk_policy(getattr(Settings().voicebox, mode), LOOK_AHEAD), codes, symbols, at_once=1)


@pytest.mark.parametrize("mode", ["latency_first", "quality_first"])
def test_joins(net: VoiceBoxNet, replies: list[tuple[list[int], bytes]], mode: str) -> None:
    joins = 0
    for codes, symbols in replies:
        chunks = cut(mode, codes, symbols)
        sound, whole = streamed(net, chunks), exactly(net, codes, symbols, chunks)
        assert len(sound) == len(whole) == len(codes) * TOKEN_SAMPLES, "the duration is exact"
        steps, own = np.abs(np.diff(sound)), np.abs(np.diff(whole))
        limit = np.percentile(steps, 99.9)
        loudest = np.sqrt(np.mean(whole**2))
        for chunk in chunks[1:]:
            joins += 1
            place = chunk.first_step * TOKEN_SAMPLES
            # The voice may make a large step just there by itself; then it is no larger for the join.
            assert steps[place - 1] <= max(limit, 1.02 * own[place - 1])
            ours, theirs = sound[place - NEAR : place + NEAR], whole[place - NEAR : place + NEAR]
            level = np.sqrt(np.mean(theirs**2))
            assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.01 * loudest, (
                "no difference that is not far below the voice"
            )
            if level > 0.05 * loudest:
                assert np.corrcoef(ours, theirs)[0, 1] > 0.999
                assert abs(20 * np.log10(np.sqrt(np.mean(ours**2)) / level)) < 0.2
    assert joins >= {"latency_first": 12, "quality_first": 6}[mode]


def test_a_join_that_is_bad_is_noticed(net: VoiceBoxNet, replies: list[tuple[list[int], bytes]]) -> None:
    """Chunks without context: the measures of the test above tell."""
    codes, symbols = replies[0]
    bare = [
        Chunk(pack_steps(codes[a : a + 10], symbols[9 * a : 9 * (a + 10)]), 0, len(codes[a : a + 10]), a, False)
        for a in range(0, len(codes), 10)
    ]
    sound, whole = streamed(net, bare), exactly(net, codes, symbols, bare)
    places = [chunk.first_step * TOKEN_SAMPLES for chunk in bare[1:]]
    pairs = [(sound[place - NEAR : place + NEAR], whole[place - NEAR : place + NEAR]) for place in places]
    assert max(np.sqrt(np.mean((ours - theirs) ** 2)) for ours, theirs in pairs) > 0.1 * np.sqrt(np.mean(whole**2))
    assert min(np.corrcoef(ours, theirs)[0, 1] for ours, theirs in pairs) < 0.9
