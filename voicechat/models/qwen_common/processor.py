"""The published processors for text, sound and images; their part for videos, which asks for more, is left out."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@functools.cache
def _without_video(base: type) -> type:
    """A class of the published kind that takes the parts it is given as they are."""

    def begin(self: Any, image_processor: Any, feature_extractor: Any, tokenizer: Any) -> None:
        self.image_processor, self.feature_extractor, self.tokenizer = image_processor, feature_extractor, tokenizer
        self.video_processor = SimpleNamespace(merge_size=image_processor.merge_size, temporal_patch_size=2, size={})
        self.chat_template = None
        for name in ("image", "audio", "video", "vision_bos", "vision_eos", "audio_bos", "audio_eos"):
            setattr(self, f"{name}_token", getattr(tokenizer, f"{name}_token"))

    return type(f"{base.__name__}WithoutVideo", (base,), {"__init__": begin})


def load_processor(base: type, folder: str | Path, tokenizer: Any) -> Any:
    """A processor of the published class ``base``, from the files of a model's folder."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor

    images = AutoImageProcessor.from_pretrained(str(folder))
    sounds = AutoFeatureExtractor.from_pretrained(str(folder))
    return _without_video(base)(images, sounds, tokenizer)


class InfoWithoutVideo:
    """To be put in front of vLLM's processing info of a Qwen-Omni model; ``processor`` names the published class."""

    processor: type
    ctx: Any
    _loaded: Any = None

    def get_hf_processor(self, **kwargs: object) -> Any:
        """One processor for all uses."""
        if self._loaded is None:
            self._loaded = load_processor(self.processor, self.ctx.model_config.model, self.ctx.tokenizer)
        return self._loaded

    def get_supported_mm_limits(self) -> dict[str, int | None]:
        """Sounds and images, as many as the context holds."""
        return {"audio": None, "image": None}
