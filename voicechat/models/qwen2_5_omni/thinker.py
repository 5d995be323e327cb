"""Qwen2.5-Omni's Thinker: vLLM's own model, which keeps besides what the Talker needs of each position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from transformers import Qwen2_5OmniProcessor
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2_5_omni_thinker import (
    Qwen2_5OmniThinkerDummyInputsBuilder,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniThinkerMultiModalProcessor,
    Qwen2_5OmniThinkerProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from voicechat.models.qwen_common.checkpoint import Checkpoint
from voicechat.models.qwen_common.processor import InfoWithoutVideo
from voicechat.models.qwen_common.senses import Senses


class _Info(InfoWithoutVideo, Qwen2_5OmniThinkerProcessingInfo):
    processor = Qwen2_5OmniProcessor


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2_5OmniThinkerMultiModalProcessor,
    info=_Info,
    dummy_inputs=Qwen2_5OmniThinkerDummyInputsBuilder,
)
class Qwen25OmniThinker(Senses, Qwen2_5OmniThinkerForConditionalGeneration):
    """Rows of a step: last hidden state and embedding of a position together; of sound and image the former alone."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.make_room(vllm_config)
        self.folder = vllm_config.model_config.model

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> Any:
        """As vLLM's. What rows need is written into a buffer, inside CUDA graphs too."""
        inputs_embeds = self.embedded(input_ids, inputs_embeds)
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)

    def rows(self, hidden: Tensor) -> Tensor:
        """Hidden rows ``[n, width]`` of the step that ran, of whose positions ``hidden`` are the last states."""
        count = len(hidden)
        return hidden + self.kept[:count].masked_fill(self.heard_or_seen[:count], 0)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Read the Thinker's part of the folder; vLLM's own iterator, which would read all of it, stays unused."""
        return super().load_weights(Checkpoint(self.folder).read(["thinker."], label="Thinker"))
