"""A tiny Qwen3-Omni through all three real stages: text and sound equal transformers', with text, sound and image."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from tests.models import tiny_qwen
from voicechat.app import build
from voicechat.assemble import assemble
from voicechat.cascade.coordinator import Coordinator
from voicechat.config import load_settings
from voicechat.contract.events import AudioDelta, Finished, TextDelta
from voicechat.contract.requests import AudioPart, ImagePart, Message, ResponseRequest, SpeechRequest, TextPart
from voicechat.models.qwen3_omni.code2wav import Code2WavConfig
from voicechat.models.qwen_common.prompt import whole_frames
from voicechat.models.qwen_common.settings import SYSTEM_PROMPT
from voicechat.models.qwen_common.vision import find_torchvision

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
TOKENS, STEPS = 16, 30
LOUD = 32767.0
CONFIG = """
model:
  {{name: tiny, family: qwen3_omni, source: {source}, dtype: float32, further_codes: likeliest, max_steps: {steps}}}
thinker: {{max_num_seqs: 9, max_model_len: 512, kv_cache_mb: 64, threads: 1, temperature: 0, repetition_penalty: 1,
          default_max_tokens: {tokens}}}
talker: {{max_num_seqs: 9, max_model_len: 512, kv_cache_mb: 64, threads: 1, temperature: 0}}
voicebox:
  threads: 1
  max_batch: 4
  latency_first: {{first_chunk: 2, growth: 2, max_chunk: 8, left_context: 0}}
  quality_first: {{first_chunk: 8, growth: 1, max_chunk: 8, left_context: 0}}
pool: {{slots: 9, max_rows: 512, max_text_rows: 2048}}
watermark: {{enabled: false}}
"""


class Reference:
    """Transformers' model, asked one conversation after another."""

    def __init__(self, folder: Path) -> None:
        find_torchvision()
        from transformers import AutoTokenizer, Qwen3OmniMoeProcessor

        from voicechat.models.qwen_common.processor import load_processor

        self.model = tiny_qwen.make_qwen3(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self.processor = load_processor(Qwen3OmniMoeProcessor, folder, self.tokenizer)
        # hidden rows travel in bfloat16
        self.model.talker.hidden_projection.register_forward_pre_hook(lambda _, given: (given[0].bfloat16().float(),))
        self.lag = Code2WavConfig.of(self.model.config.code2wav_config.to_dict()).lag

    def ask(self, messages: tuple[Message, ...], voice: str = "ethan") -> tuple[str, np.ndarray[Any, Any]]:
        """The reply's text, and its sound: float32 at 24 kHz."""
        sounds: list[Any] = []
        images: list[Any] = []
        shown: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM_PROMPT}]
        for message in messages:
            parts: list[dict[str, str]] = []
            for part in message.parts:
                if isinstance(part, TextPart):
                    # the cascade puts lines between a message's texts
                    said = any(other["type"] == "text" for other in parts)
                    parts.append({"type": "text", "text": ("\n" if said else "") + part.text})
                elif isinstance(part, AudioPart):
                    sounds.append(whole_frames(part.pcm))
                    parts.append({"type": "audio"})
                elif isinstance(part, ImagePart):
                    from PIL import Image

                    images.append(Image.open(io.BytesIO(part.data)))
                    parts.append({"type": "image"})
            shown.append({"role": message.role, "content": parts})
        text = self.tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
        given = {**({"audio": sounds} if sounds else {}), **({"images": images} if images else {})}
        inputs = self.processor(text=[text], return_tensors="pt", **given)
        sequences, sound = self.model.generate(
            **inputs,
            speaker=voice,
            thinker_max_new_tokens=TOKENS,
            thinker_do_sample=False,
            thinker_eos_token_id=self.tokenizer.eos_token_id,
            talker_max_new_tokens=STEPS,
            talker_do_sample=False,
        )
        reply = sequences[0, inputs["input_ids"].shape[1] :].tolist()
        return self.tokenizer.decode(reply, skip_special_tokens=True), sound[0, 0].numpy()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("served") / "qwen3"
    made = Reference(folder)
    made.folder = folder  # type: ignore[attr-defined]
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Coordinator]:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    source = reference.folder  # type: ignore[attr-defined]
    path.write_text(CONFIG.format(source=source, steps=STEPS, tokens=TOKENS))
    settings = load_settings(str(path))
    coordinator = build(settings, assemble(settings))
    await coordinator.start()
    yield coordinator
    await coordinator.stop()


async def heard(coordinator: Coordinator, request: ResponseRequest | SpeechRequest) -> tuple[str, Any]:
    text, sound = "", []
    response = coordinator.speak(request) if isinstance(request, SpeechRequest) else coordinator.respond(request)
    async for event in response:
        match event:
            case TextDelta():
                text += event.text
            case AudioDelta():
                sound.append(event.pcm)
            case Finished():
                pass
    return text, np.concatenate(sound)


def conversations() -> list[tuple[Message, ...]]:
    from PIL import Image

    rng = np.random.default_rng(1)
    pcm = rng.standard_normal(11_077).astype(np.float32) * 0.1
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (100, 150, 3), dtype=np.uint8)).save(file, "PNG")
    sound, image = AudioPart(pcm), ImagePart(file.getvalue())
    earlier = (Message.text("user", "Hi there"), Message.text("assistant", "Yes."))
    return [
        (Message.text("user", "Hello"),),
        (Message("user", (sound,)),),
        (*earlier, Message("user", (TextPart("Look:"), image, TextPart(" and hear"), sound))),
        (*earlier, Message("user", (image, TextPart("What?")))),
    ]


def same(made: tuple[str, Any], expected: tuple[str, Any], lag: int) -> None:
    """The reference's sound is in ours, behind the look-ahead of silence. A text may end in half a letter."""
    text, pcm = made
    assert text.rstrip("\ufffd") == expected[0].rstrip("\ufffd")
    sound = expected[1]
    assert not pcm[:lag].any() and len(pcm) >= lag + len(sound)
    assert sound.std() > 0.01
    wrong = np.flatnonzero(np.abs(pcm[lag : lag + len(sound)] / LOUD - sound) > 3e-4)
    assert not len(wrong), f"parts in frame {(wrong[0] + lag) / 1920:.2f}"


async def test_each_alone(coordinator: Coordinator, reference: Reference) -> None:
    """In small chunks and in large ones; without a voice it is the published model's own."""
    for index, messages in enumerate(conversations()):
        expected = reference.ask(messages)
        made = await heard(coordinator, ResponseRequest(messages, latency_first=index % 2 > 0))
        same(made, expected, reference.lag)
        other = await heard(coordinator, ResponseRequest(messages, latency_first=index % 2 == 0))
        assert other[0] == made[0] and np.abs(other[1].astype(int) - made[1]).max() <= 1


async def test_many_at_once(coordinator: Coordinator, reference: Reference) -> None:
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
