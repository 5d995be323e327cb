"""Qwen3-Omni's Thinker: vLLM's own model, which keeps besides what the Talker needs of each position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3OmniMoeProcessor
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen3_omni_moe_thinker import (
    Qwen3OmniMoeThinkerDummyInputsBuilder,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerMultiModalProcessor,
    Qwen3OmniMoeThinkerProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from voicechat.models.qwen_common.checkpoint import Checkpoint
from voicechat.models.qwen_common.processor import InfoWithoutVideo


class _Info(InfoWithoutVideo, Qwen3OmniMoeThinkerProcessingInfo):
    processor = Qwen3OmniMoeProcessor


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3OmniMoeThinkerMultiModalProcessor,
    info=_Info,
    dummy_inputs=Qwen3OmniMoeThinkerDummyInputsBuilder,
)
class Qwen3OmniThinker(Qwen3OmniMoeThinkerForConditionalGeneration):
    """Rows of a step: the embedding of a position of text, a middle layer's hidden state of one of sound or image."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        model_config = vllm_config.model_config
        most = vllm_config.scheduler_config.max_num_batched_tokens
        width = model_config.hf_config.thinker_config.text_config.hidden_size
        self.folder = model_config.model
        layer = model_config.hf_config.talker_config.accept_hidden_layer
        self.language_model.model.aux_hidden_state_layers = (layer,)
        self.kept = torch.zeros(most, width, dtype=model_config.dtype)
        self.middle = torch.zeros(most, width, dtype=model_config.dtype)
        self.heard_or_seen = torch.zeros(most, 1, dtype=torch.bool)

    def embed_input_ids(
        self, input_ids: Tensor, multimodal_embeddings: Any = None, *, is_multimodal: Tensor | None = None
    ) -> Tensor:
        """As vLLM asks before each step; the mask of the step's sounds and images is kept."""
        made = super().embed_input_ids(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)
        count = len(input_ids)
        if is_multimodal is None or not multimodal_embeddings:
            self.heard_or_seen[:count].fill_(False)
        else:
            self.heard_or_seen[:count, 0].copy_(is_multimodal, non_blocking=True)
        return made

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> Any:
        """As vLLM's. What rows need is written into buffers, inside CUDA graphs too."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        count = inputs_embeds.shape[0]
        self.kept[:count].copy_(inputs_embeds)
        hidden, (middle,) = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)
        self.middle[:count].copy_(middle)
        return hidden

    def rows(self, count: int) -> Tensor:
        """Hidden rows ``[count, width]`` of the step that ran."""
        return torch.where(self.heard_or_seen[:count], self.middle[:count], self.kept[:count])

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Read the Thinker's part of the folder; vLLM's own iterator, which would read all of it, stays unused."""
        return super().load_weights(Checkpoint(self.folder).read(["thinker."], label="Thinker"))
