"""Prompts of the Qwen-Omni models: the published chat template, with a mark for each sound and image of a turn.

The marks are single tokens, as the models' Hugging Face processors expect them; each grows to as many positions as the
sound or the image takes, and the Talker has to know which. So the lengths are computed here too, by the rules of the
processors (their own image processor, and the strides of the sound's encoder).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voicechat.contract.family import Prompt
from voicechat.contract.messages import Generate, Turn
from voicechat.contract.requests import AudioPart, ImagePart
from voicechat.contract.sound import EARS_RATE, EarsPcm
from voicechat.contract.tools import as_text
from voicechat.models.qwen_common.note import Image, Note

HOP = 160
"""Samples (16 kHz) of a frame of the sound's features."""
MOST_PIXELS = 50_000_000
"""Of an image as it came: more is no photograph but an attack on the memory."""


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Tokens with a meaning of their own."""

    turn: int
    """Begins a turn (``<|im_start|>``)."""
    user: int
    sound: int
    """The mark of a sound (``<|audio_pad|>``); so the next."""
    image: int


@dataclass(frozen=True, slots=True)
class Eyes:
    """The image processor's sizes: a position is ``cell`` x ``cell`` pixels of the image as it is fitted between
    ``least`` and ``most`` pixels."""

    cell: int
    least: int
    most: int

    @staticmethod
    def of(folder: Path) -> Eyes:
        """From ``preprocessor_config.json`` (or ``processor_config.json``) of a model's folder."""
        found: dict[str, Any] = {}
        path = folder / "processor_config.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8")).get("image_processor") or {}
        path = folder / "preprocessor_config.json"
        if not found and path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
        size = found.get("size") or {}
        return Eyes(
            found.get("patch_size", 14) * found.get("merge_size", 2),
            found.get("min_pixels") or size.get("shortest_edge", 56 * 56),
            found.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280),
        )

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of positions that an image takes. Raises ValueError for one that is too narrow."""
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        fitted = smart_resize(height, width, factor=self.cell, min_pixels=self.least, max_pixels=self.most)
        return fitted[0] // self.cell, fitted[1] // self.cell


class OmniPrompter:
    """See :class:`voicechat.contract.family.Prompter`.

    ``sound_length`` says how many positions so many frames of sound take. ``marks``: the texts around and of a sound's
    and an image's mark. Raises ValueError if the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        folder: Path,
        system_prompt: str,
        ids: PromptIds,
        sound_length: Callable[[int], int],
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template(tokenizer, folder)
        self._system = system_prompt
        self._ids = ids
        self._sound_length = sound_length
        self._eyes = Eyes.of(folder)

    def prompt(self, message: Generate, media: Mapping[int, AudioPart | ImagePart]) -> Prompt:
        """See the interface."""
        turns = as_text(message, self._system)
        if not any(turn.role == "system" for turn in turns):
            turns = (Turn("system", self._system), *turns)
        given: dict[str, list[Any]] = {"audio": [], "image": []}
        sizes: list[int | tuple[int, int]] = []
        messages = [self._message(turn, media, given, sizes) for turn in turns]
        ids = self._encode(messages)
        return Prompt(ids, {name: parts for name, parts in given.items() if parts}, self._note(ids, sizes).encode())

    def _message(
        self,
        turn: Turn,
        media: Mapping[int, AudioPart | ImagePart],
        given: dict[str, list[Any]],
        sizes: list[int | tuple[int, int]],
    ) -> dict[str, Any]:
        parts: list[dict[str, str]] = []
        done = 0
        for medium in turn.media:
            if medium.at > done:
                parts.append({"type": "text", "text": turn.text[done : medium.at]})
                done = medium.at
            part = media[medium.number]
            if isinstance(part, AudioPart):
                sound = whole_frames(part.pcm)
                given["audio"].append((sound, EARS_RATE))
                sizes.append(self._sound_length(len(sound) // HOP))
                parts.append({"type": "audio", "audio": ""})
            else:
                image = open_image(part.data)
                given["image"].append(image)
                sizes.append(self._eyes.grid(*image.size))
                parts.append({"type": "image", "image": ""})
        if done < len(turn.text) or not parts:
            parts.append({"type": "text", "text": turn.text[done:]})
        if turn.role == "user" or turn.media:
            return {"role": turn.role, "content": parts}
        return {"role": turn.role, "content": turn.text if turn.role == "assistant" else parts}

    def _encode(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses this conversation: {error}") from None
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _note(self, ids: Sequence[int], sizes: Sequence[int | tuple[int, int]]) -> Note:
        """Spans in positions, each mark grown to its size. Raises ValueError if a text holds marks of its own."""
        mine, left = self._ids, list(sizes)
        users: list[tuple[int, int]] = []
        sounds: list[tuple[int, int]] = []
        images: list[Image] = []
        place, user_from = 0, -1
        for index, token in enumerate(ids):
            if token == mine.turn:
                if user_from >= 0:
                    users.append((user_from, place))
                following = ids[index + 1] if index + 1 < len(ids) else -1
                user_from = place if following == mine.user else -1
            if token in (mine.sound, mine.image):
                size = left.pop(0) if left else None
                if token == mine.sound and isinstance(size, int):
                    sounds.append((place, place + size))
                    place += size
                    continue
                if token == mine.image and isinstance(size, tuple):
                    images.append(Image(place, *size))
                    place += size[0] * size[1]
                    continue
                raise ValueError("a text of the conversation holds the mark of a sound or an image")
            place += 1
        if left:
            raise ValueError("the model's chat template leaves out sounds or images of this conversation")
        if user_from >= 0:
            users.append((user_from, place))
        return Note(place, tuple(users), tuple(sounds), tuple(images))


def chat_template(tokenizer: Any, folder: Path) -> str:
    """The published template: the tokenizer's, or that of a file beside it. Raises ValueError if there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / "chat_template.json").is_file():
        return str(json.loads((folder / "chat_template.json").read_text(encoding="utf-8"))["chat_template"])
    if getattr(tokenizer, "chat_template", None):
        return str(tokenizer.chat_template)
    raise ValueError(f"{folder} has no chat template")


def whole_frames(pcm: EarsPcm) -> EarsPcm:
    """Sound that ends with a frame: what is missing is silence. Raises ValueError for a sound that is too short."""
    if len(pcm) < 4 * HOP:
        raise ValueError(f"a sound of {len(pcm)} samples is too short to be heard")
    missing = -len(pcm) % HOP
    return np.pad(pcm, (0, missing)) if missing else pcm


def open_image(data: bytes) -> Any:
    """A file's image in RGB. Raises ValueError, in words for the caller, for what is none or is too large."""
    from PIL import Image as Pillow
    from PIL import ImageOps, UnidentifiedImageError

    try:
        image = Pillow.open(io.BytesIO(data))
        if image.width * image.height > MOST_PIXELS:
            most = MOST_PIXELS // 1_000_000
            raise ValueError(f"the image has {image.width} x {image.height} pixels; at most {most} million are taken")
        return ImageOps.exif_transpose(image).convert("RGB")
    except UnidentifiedImageError:
        raise ValueError("this is no image that can be read (PNG, JPEG, WebP and GIF are)") from None
    except (OSError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise ValueError(f"the image can't be read: {error}") from None
