"""What the Qwen-Omni families' Thinkers and Talkers say of their engines alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from voicechat.contract.family import EngineModel
from voicechat.models.qwen_common.prompt import OmniPrompter, PromptIds
from voicechat.models.qwen_common.vision import find_torchvision


class OmniThinker:
    """See :class:`voicechat.contract.family.ThinkerModel`. ``name``: of the class at ``place`` (``module:Class``)."""

    def __init__(self, given: Mapping[str, Any], name: str, place: str) -> None:
        find_torchvision()
        self.folder = Path(given["folder"])
        options: dict[str, Any] = {
            "hf_overrides": {"architectures": [name]},
            "limit_mm_per_prompt": {"image": given["images"], "audio": given["sounds"], "video": 0},
            "mm_processor_cache_gb": 0,
        }
        if given["quantization"]:
            options["quantization"] = given["quantization"]
        if given["random"]:
            options["load_format"] = "dummy"
        self.engine = EngineModel(
            folder=given["folder"], dtype=given["dtype"], architectures={name: place}, options=options
        )

    def prompter_of(
        self, tokenizer: Any, system_prompt: str, ids: PromptIds, sound_length: Callable[[int], int]
    ) -> OmniPrompter:
        """What builds prompts with these ids."""
        return OmniPrompter(tokenizer, self.folder, system_prompt, ids, sound_length)


def talker_engine(given: Mapping[str, Any], name: str, place: str, override: Callable[[Any], Any]) -> EngineModel:
    """A Talker's engine; ``override`` makes its configuration of the whole model's."""
    options: dict[str, Any] = {"hf_overrides": override}
    if given["random"]:
        options["load_format"] = "dummy"
    return EngineModel(folder=given["folder"], dtype=given["dtype"], architectures={name: place}, options=options)


class Words:
    """The Thinker's tokenizer, for texts that are to be read out: loaded in the Talker's host alone."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._tokenizer: Any = None

    def load(self) -> None:
        """May take a second."""
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(Path(self._folder) / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
