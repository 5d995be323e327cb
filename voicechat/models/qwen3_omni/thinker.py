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
from voicechat.models.qwen_common.senses import Senses


class _Info(InfoWithoutVideo, Qwen3OmniMoeThinkerProcessingInfo):
    processor = Qwen3OmniMoeProcessor


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3OmniMoeThinkerMultiModalProcessor,
    info=_Info,
    dummy_inputs=Qwen3OmniMoeThinkerDummyInputsBuilder,
)
class Qwen3OmniThinker(Senses, Qwen3OmniMoeThinkerForConditionalGeneration):
    """Rows of a step: the embedding of a position of text, a middle layer's hidden state of one of sound or image."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.make_room(vllm_config)
        model_config = vllm_config.model_config
        self.folder = model_config.model
        self.middle = torch.zeros_like(self.kept)
        layer = model_config.hf_config.talker_config.accept_hidden_layer
        layers = self.language_model.model.layers
        behind = layers[layer] if layer < len(layers) else self.language_model.model.norm
        behind.register_forward_pre_hook(self._keep_middle)
        images = getattr(self, "deepstack_input_embeds", None)
        if images and images[0].is_meta:  # 0.26, where no images are taken: there is no buffer to add from
            self.deepstack_input_embeds = None

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> Any:
        """As vLLM's. What rows need is written into buffers, inside CUDA graphs too."""
        inputs_embeds = self.embedded(input_ids, inputs_embeds)
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)

    def _keep_middle(self, module: Any, given: tuple[Any, ...]) -> None:
        """What goes into the layer behind the middle one: hidden states, and what is added to them.

        vLLM gives middle layers' states out by itself too, but in 0.26 not those of this model.
        """
        hidden, residual = given[-2:]
        self.middle[: len(hidden)].copy_(hidden + residual)

    def rows(self, count: int) -> Tensor:
        """Hidden rows ``[count, width]`` of the step that ran."""
        return torch.where(self.heard_or_seen[:count], self.middle[:count], self.kept[:count])

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Read the Thinker's part of the folder; vLLM's own iterator, which would read all of it, stays unused."""
        return super().load_weights(Checkpoint(self.folder).read(["thinker."], label="Thinker"))
