"""A tiny Qwen2.5-Omni through all three real stages: text, codes and sound equal transformers'.

A reply in one chunk is the reference's to the last sample; of one in small chunks it is so of the first window.
"""

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
from voicechat.contract.requests import Message, ResponseRequest, SpeechRequest
from voicechat.models.qwen2_5_omni.token2wav import noise_table
from voicechat.models.qwen_common.vision import find_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
STEP, BLOCK = 480, 3
CHUNKS = (
    "latency_first: {first_chunk: 3, growth: 2, max_chunk: 12, left_context: 6, ease: 0}, "
    "quality_first: {first_chunk: 36, growth: 1, max_chunk: 36, left_context: 6, ease: 0}"
)


class Qwen25Reference(Reference):
    def __init__(self, folder: Path) -> None:
        find_torchvision()
        from transformers import AutoTokenizer, Qwen2_5OmniProcessor

        from voicechat.models.qwen_common.processor import load_processor

        self.folder = folder
        self.model = tiny_qwen.make_qwen25(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self.processor = load_processor(Qwen2_5OmniProcessor, folder, self.tokenizer)
        speak = self.model.talker.generate

        def rounded(**given: Any) -> Any:  # hidden rows travel in bfloat16
            for name in ("inputs_embeds", "thinker_reply_part"):
                given[name] = given[name].bfloat16().float()
            given.pop("pixel_values", None)  # transformers hands it to the Talker, which then refuses it
            return speak(**given)

        self.model.talker.generate = rounded
        self.model.talker.register_forward_pre_hook(_with_mask, with_kwargs=True)
        self.codes: list[torch.Tensor] = []
        self.model.token2wav.register_forward_pre_hook(lambda _, given: self.codes.append(given[0]))

    def generate(self, inputs: dict[str, Any], voice: str) -> tuple[Any, np.ndarray[Any, Any]]:
        with from_our_noise():
            sequences, sound = self.model.generate(
                **inputs,
                speaker=voice.title(),
                thinker_max_new_tokens=TOKENS,
                thinker_do_sample=False,
                thinker_eos_token_id=self.tokenizer.eos_token_id,
                talker_max_new_tokens=STEPS,
                talker_do_sample=False,
                talker_eos_token_id=[59, 61],
            )
        return sequences, sound.numpy()

    def beginning(self, voice: str) -> np.ndarray[Any, Any]:
        """Of the reply that was asked last, the sound of the first block, made with the block behind it alone."""
        facts = self.model.speaker_map[voice.title()]
        with from_our_noise(), torch.inference_mode():
            sound = self.model.token2wav(self.codes[-1][:, : 2 * BLOCK], facts["cond"], facts["ref_mel"])
        made: np.ndarray[Any, Any] = sound.numpy()[: BLOCK * STEP]
        return made


def _with_mask(_: Any, given: Any, named: dict[str, Any]) -> Any:
    """Generation of transformers 5.19 leaves out a mask of ones; without one its Talker forgets to begin the codes."""
    if named.get("attention_mask") is None:
        new = named["inputs_embeds"] if named.get("inputs_embeds") is not None else named["input_ids"]
        past = named["past_key_values"].get_seq_length() if named.get("past_key_values") is not None else 0
        named["attention_mask"] = torch.ones(1, past + new.shape[1], dtype=torch.long)
    return given, named


class from_our_noise:
    """Within it the flow begins where ours does."""

    def __enter__(self) -> None:
        table, self._drawn = noise_table(1 << 13, 8), torch.randn
        torch.randn = lambda shape, **_: table[None, : shape[1]].clone()  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        torch.randn = self._drawn


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Qwen25Reference:
    return Qwen25Reference(tmp_path_factory.mktemp("served") / "qwen25")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(
    reference: Qwen25Reference, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Coordinator]:
    folder = tmp_path_factory.mktemp("config")
    async with serving(folder, reference.folder, family="qwen2_5_omni", chunks=CHUNKS) as coordinator:
        yield coordinator


def same(
    made: tuple[str, Any], reference: Qwen25Reference, messages: tuple[Message, ...], voice: str, *, whole: bool
) -> None:
    """The reference's text, as many samples, and the same ones: all of them, or those of the first window."""
    expected, sound = reference.ask(messages, voice)
    assert same_text(made[0], expected)
    assert len(made[1]) == len(sound) and sound.std() > 0.005
    if not whole:
        sound = reference.beginning(voice)
    wrong = np.flatnonzero(np.abs(made[1][: len(sound)] / LOUD - sound) > 3e-4)
    assert not len(wrong), f"parts at step {wrong[0] / STEP:.2f}"


async def test_each_alone(coordinator: Coordinator, reference: Qwen25Reference) -> None:
    """In one chunk and in small ones; without a voice it is the published model's own."""
    for messages in conversations():
        for whole in (True, False):
            made = await heard(coordinator, ResponseRequest(messages, latency_first=not whole))
            same(made, reference, messages, "chelsie", whole=whole)


async def test_many_at_once(coordinator: Coordinator, reference: Qwen25Reference) -> None:
    """Eight, one after another in the middle of those before; one is broken off, and takes no other along."""
    asked = [*conversations(), *conversations()]
    voices = ["ethan", "chelsie"] * 4

    async def one(index: int) -> tuple[str, Any]:
        await asyncio.sleep(0.03 * index)
        return await heard(
            coordinator, ResponseRequest(asked[index], voice=voices[index], latency_first=index % 3 == 0)
        )

    stray = coordinator.respond(ResponseRequest(asked[0]))
    made = [asyncio.create_task(one(index)) for index in range(8)]
    async for event in stray:
        if isinstance(event, AudioDelta):
            break
    stray.cancel()
    for index, reply in enumerate(await asyncio.gather(*made)):
        same(reply, reference, asked[index], voices[index], whole=index % 3 > 0)


async def test_a_text_is_read_out(coordinator: Coordinator) -> None:
    _, pcm = await heard(coordinator, SpeechRequest("Hello there, how are you?"))
    assert len(pcm) == STEPS * STEP and pcm.astype(np.float32).std() > 100
