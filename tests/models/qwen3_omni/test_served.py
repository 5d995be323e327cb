"""A tiny Qwen3-Omni through all three real stages: text and sound equal transformers', with text, sound and image."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from tests.models import tiny_qwen
from tests.models.served import LOUD, STEPS, TOKENS, Reference, conversations, heard, same_text, serving
from voicechat.cascade.coordinator import Coordinator
from voicechat.contract.events import AudioDelta
from voicechat.contract.requests import ResponseRequest, SpeechRequest
from voicechat.models.qwen3_omni.code2wav import Code2WavConfig
from voicechat.models.qwen_common.vision import find_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
CHUNKS = (
    "latency_first: {first_chunk: 2, growth: 2, max_chunk: 8, left_context: 0}, "
    "quality_first: {first_chunk: 8, growth: 1, max_chunk: 8, left_context: 0}"
)


class Qwen3Reference(Reference):
    def __init__(self, folder: Path) -> None:
        find_torchvision()
        from transformers import AutoTokenizer, Qwen3OmniMoeProcessor

        from voicechat.models.qwen_common.processor import load_processor

        self.folder = folder
        self.model = tiny_qwen.make_qwen3(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self.processor = load_processor(Qwen3OmniMoeProcessor, folder, self.tokenizer)
        # hidden rows travel in bfloat16
        self.model.talker.hidden_projection.register_forward_pre_hook(lambda _, given: (given[0].bfloat16().float(),))
        self.lag = Code2WavConfig.of(self.model.config.code2wav_config.to_dict()).lag

    def generate(self, inputs: dict[str, Any], voice: str) -> tuple[Any, np.ndarray[Any, Any]]:
        sequences, sound = self.model.generate(
            **inputs,
            speaker=voice,
            thinker_max_new_tokens=TOKENS,
            thinker_do_sample=False,
            thinker_eos_token_id=self.tokenizer.eos_token_id,
            talker_max_new_tokens=STEPS,
            talker_do_sample=False,
        )
        return sequences, sound[0, 0].numpy()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Qwen3Reference:
    return Qwen3Reference(tmp_path_factory.mktemp("served") / "qwen3")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(
    reference: Qwen3Reference, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Coordinator]:
    folder = tmp_path_factory.mktemp("config")
    async with serving(folder, reference.folder, family="qwen3_omni", chunks=CHUNKS) as coordinator:
        yield coordinator


def same(made: tuple[str, Any], expected: tuple[str, Any], lag: int) -> None:
    """The reference's sound is in ours, behind the look-ahead of silence."""
    text, pcm = made
    assert same_text(text, expected[0])
    sound = expected[1]
    assert not pcm[:lag].any() and len(pcm) >= lag + len(sound)
    assert sound.std() > 0.01
    wrong = np.flatnonzero(np.abs(pcm[lag : lag + len(sound)] / LOUD - sound) > 3e-4)
    assert not len(wrong), f"parts in frame {(wrong[0] + lag) / 1920:.2f}"


async def test_each_alone(coordinator: Coordinator, reference: Qwen3Reference) -> None:
    """In small chunks and in large ones; without a voice it is the published model's own."""
    for index, messages in enumerate(conversations()):
        expected = reference.ask(messages, "ethan")
        made = await heard(coordinator, ResponseRequest(messages, latency_first=index % 2 > 0))
        same(made, expected, reference.lag)
        other = await heard(coordinator, ResponseRequest(messages, latency_first=index % 2 == 0))
        assert other[0] == made[0] and np.abs(other[1].astype(int) - made[1]).max() <= 1


async def test_many_at_once(coordinator: Coordinator, reference: Qwen3Reference) -> None:
    """Eight, one after another in the middle of those before; one is broken off, and takes no other along."""
    asked = [*conversations(), *conversations()]
    voices = ["ethan", "chelsie"] * 4

    async def one(index: int) -> tuple[str, Any]:
        await asyncio.sleep(0.03 * index)
        return await heard(coordinator, ResponseRequest(asked[index], voice=voices[index], latency_first=index % 3 > 0))

    stray = coordinator.respond(ResponseRequest(asked[0]))
    made = [asyncio.create_task(one(index)) for index in range(8)]
    async for event in stray:
        if isinstance(event, AudioDelta):
            break
    stray.cancel()
    for index, reply in enumerate(await asyncio.gather(*made)):
        same(reply, reference.ask(asked[index], voices[index]), reference.lag)


async def test_a_text_is_read_out(coordinator: Coordinator) -> None:
    _, pcm = await heard(coordinator, SpeechRequest("Hello there, how are you?"))
    assert len(pcm) > 1920 and torch.from_numpy(pcm.astype(np.float32)).std() > 100
