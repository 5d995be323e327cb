"""What both Qwen-Omni Thinkers keep of a step for their Talkers: its input embeddings, and what was sound or image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Senses:
    """To be put in front of one of vLLM's Thinkers."""

    kept: Tensor
    """Input embeddings of the step's positions, ``[most, width]``."""
    heard_or_seen: Tensor
    """Which of them are of a sound or an image, bool ``[most, 1]``."""

    def make_room(self, vllm_config: Any) -> None:
        """Buffers for the largest step."""
        config = vllm_config.model_config
        most = vllm_config.scheduler_config.max_num_batched_tokens
        self.kept = torch.zeros(most, config.hf_config.thinker_config.text_config.hidden_size, dtype=config.dtype)
        self.heard_or_seen = torch.zeros(most, 1, dtype=torch.bool)

    def embed_input_ids(
        self, input_ids: Tensor, multimodal_embeddings: Any = None, *, is_multimodal: Tensor | None = None
    ) -> Tensor:
        """As vLLM asks before each step; the mask of the step's sounds and images is kept."""
        made: Tensor = super().embed_input_ids(  # type: ignore[misc]
            input_ids, multimodal_embeddings, is_multimodal=is_multimodal
        )
        count = len(input_ids)
        if is_multimodal is None or not multimodal_embeddings:
            self.heard_or_seen[:count].fill_(False)
        else:
            self.heard_or_seen[:count, 0].copy_(is_multimodal, non_blocking=True)
        return made

    def embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """A step's input embeddings, copied aside; inside CUDA graphs too."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        self.kept[: inputs_embeds.shape[0]].copy_(inputs_embeds)
        return inputs_embeds
