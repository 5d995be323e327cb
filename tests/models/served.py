"""Tiny Qwen-Omni models through all three real stages: what the tests of both families share."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from voicechat.app import build
from voicechat.assemble import assemble
from voicechat.cascade.coordinator import Coordinator
from voicechat.config import load_settings
from voicechat.contract.events import AudioDelta, TextDelta
from voicechat.contract.requests import AudioPart, ImagePart, Message, ResponseRequest, SpeechRequest, TextPart
from voicechat.models.qwen_common.prompt import whole_frames
from voicechat.models.qwen_common.settings import SYSTEM_PROMPT

TOKENS, STEPS, SLOTS = 16, 30, 9
LOUD = 32767.0
DEVICE = os.environ.get("VOICECHAT_TEST_DEVICE", "cpu")
"""``cuda``: the same on a GPU, as scripts/gpu/qwen has it."""
CONFIG = """
device: {device}
gpu: {{runner: v1}}
model:
  {{name: tiny, family: {family}, source: {source}, dtype: float32, further_codes: likeliest, max_steps: {steps}}}
thinker: {{max_num_seqs: {slots}, max_model_len: 512, kv_cache_mb: 64, threads: 1, temperature: 0,
          repetition_penalty: 1, default_max_tokens: {tokens}}}
talker: {{max_num_seqs: {slots}, max_model_len: 512, kv_cache_mb: {talker_mb}, threads: 1, temperature: 0}}
voicebox: {{threads: 1, max_batch: 4, {chunks}}}
pool: {{slots: {slots}, max_rows: 512, max_text_rows: 2048}}
watermark: {{enabled: false}}
"""


class Reference(ABC):
    """Transformers' model, asked one conversation after another."""

    tokenizer: Any
    processor: Any

    @abstractmethod
    def generate(self, inputs: dict[str, Any], voice: str) -> tuple[Any, np.ndarray[Any, Any]]:
        """The sequence of tokens [1, n], and the sound: float32 at 24 kHz."""

    def ask(self, messages: tuple[Message, ...], voice: str) -> tuple[str, np.ndarray[Any, Any]]:
        """The reply's text, and its sound."""
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
        sequences, sound = self.generate(dict(inputs), voice)
        reply = sequences[0, inputs["input_ids"].shape[1] :].tolist()
        return self.tokenizer.decode(reply, skip_special_tokens=True), sound


@asynccontextmanager
async def serving(
    folder: Path, source: Path, *, family: str, chunks: str, talker_mb: int = 64
) -> AsyncIterator[Coordinator]:
    """The three stages of the model in ``source``, warm."""
    path = folder / "tiny.yaml"
    sizes = {"steps": STEPS, "tokens": TOKENS, "slots": SLOTS, "talker_mb": talker_mb}
    text = CONFIG.format(device=DEVICE, family=family, source=source, chunks=chunks, **sizes)
    path.write_text(text)
    settings = load_settings(str(path))
    coordinator = build(settings, assemble(settings))
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()


async def heard(coordinator: Coordinator, request: ResponseRequest | SpeechRequest) -> tuple[str, Any]:
    """The text and the sound of a reply."""
    text, sound = "", []
    response = coordinator.speak(request) if isinstance(request, SpeechRequest) else coordinator.respond(request)
    async for event in response:
        match event:
            case TextDelta():
                text += event.text
            case AudioDelta():
                sound.append(event.pcm)
    return text, np.concatenate(sound)


def conversations() -> list[tuple[Message, ...]]:
    """Text; sound; several turns, with image and sound; with an image."""
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


def same_text(made: str, expected: str) -> bool:
    """A text may end in half a letter."""
    return made.rstrip("\ufffd") == expected.rstrip("\ufffd")
