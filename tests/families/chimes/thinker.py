"""The Thinker's side: prompts with ears and eyes, and rows of two states. See ``thinker_model`` for what vLLM runs."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from chimes.family import MARKS, WORDS
from voicechat.contract.family import EngineModel, Prompt
from voicechat.contract.messages import Generate, Turn
from voicechat.contract.requests import AudioPart, ImagePart

_MARK = {name: number for number, name in enumerate(MARKS)}


class ChimesThinkerModel:
    """See :class:`voicechat.contract.family.ThinkerModel`."""

    def __init__(self, folder: str) -> None:
        self.engine = EngineModel(
            folder=folder, dtype="float32", architectures={"ChimesThinker": "chimes.thinker_model:ChimesThinker"}
        )

    def prompter(self, tokenizer: Any, system_prompt: str) -> ChimesPrompter:
        return ChimesPrompter(system_prompt)

    def rows(self, model: Any, hidden: Any) -> Any:
        import torch

        return torch.cat((hidden, model.seen[: len(hidden)]), 1)


class ChimesPrompter:
    """See :class:`voicechat.contract.family.Prompter`. A word is one of ours; a sound is loud or still; an image has a
    colour. The note is the prompt's length."""

    def __init__(self, system_prompt: str) -> None:
        self._system = system_prompt

    def prompt(self, message: Generate, media: Mapping[int, AudioPart | ImagePart]) -> Prompt:
        turns = list(message.turns)
        if not any(turn.role == "system" for turn in turns):
            turns.insert(0, Turn("system", self._system))
        ids = [_MARK["<s>"]]
        for turn in turns:
            ids.append(_MARK[f"<{turn.role}>"])
            at = 0
            for medium in turn.media:
                ids += _words(turn.text[at : medium.at])
                ids.append(_MARK[_seen(media[medium.number])])
                at = medium.at
            ids += _words(turn.text[at:])
        ids.append(_MARK["<assistant>"])
        return Prompt(ids, note=len(ids).to_bytes(2, "little"))


def _words(text: str) -> list[int]:
    return [len(MARKS) + zlib.crc32(word.encode()) % len(WORDS) for word in text.split()]


def _seen(part: AudioPart | ImagePart) -> str:
    if isinstance(part, AudioPart):
        return "<loud>" if float(np.abs(part.pcm).mean()) > 0.01 else "<still>"
    from PIL import Image, UnidentifiedImageError

    try:
        colours = np.asarray(Image.open(io.BytesIO(part.data)).convert("RGB")).mean((0, 1))
    except UnidentifiedImageError:
        raise ValueError("An image of the request can't be read: not an image file.") from None
    return ("<red>", "<green>", "<blue>")[int(colours.argmax())] if colours.max() > 40 else "<dark>"
