"""What vLLM runs as the Thinker: a Llama that keeps each step's input embeddings, in a buffer that graphs may write."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.models.llama import LlamaForCausalLM


class ChimesThinker(LlamaForCausalLM):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        most = vllm_config.scheduler_config.max_num_batched_tokens
        self.seen = torch.zeros(most, vllm_config.model_config.get_hidden_size())

    def forward(
        self, input_ids: Any, positions: Any, intermediate_tensors: Any = None, inputs_embeds: Any = None
    ) -> Any:
        embeddings = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        self.seen[: len(embeddings)].copy_(embeddings)
        return super().forward(None, positions, intermediate_tensors, embeddings)
