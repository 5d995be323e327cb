"""Qwen2.5-Omni's Talker for vLLM: layers of the Qwen2 kind with heads of a size of their own, and what is around them.

vLLM's Qwen2 takes the size of a head from the width; its Llama takes it from the configuration, and with biases on
queries, keys and values its layers are these.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.llama import LlamaForCausalLM

from voicechat.models.qwen_common.checkpoint import Checkpoint, CheckpointError


class Qwen25OmniTalker(nn.Module, SupportsPP):
    """Codes from conditioned embeddings. Positions are those of :attr:`rope_positions`, [3, tokens of a step].

    The engine's configuration is made by :func:`voicechat.models.qwen2_5_omni.engines.talker_config`.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.facts: dict[str, Any] = config.voicechat
        text = copy.deepcopy(config)
        text.rope_parameters = self.facts["rope_parameters"]
        inside = vllm_config.with_hf_config(text, architectures=["LlamaForCausalLM"])
        inside.model_config.hf_text_config = text  # the layers read this one
        self.language_model = LlamaForCausalLM(vllm_config=inside, prefix=prefix)
        del self.language_model.model.embed_tokens  # codes are embedded in the Thinker's width
        self.make_empty_intermediate_tensors = self.language_model.make_empty_intermediate_tensors
        inner = self.facts["embedding_size"]
        self.codec_table = nn.Parameter(torch.zeros(config.vocab_size, inner), requires_grad=False)
        self.thinker_to_talker_proj = nn.Linear(inner, config.hidden_size)
        self.text_table = nn.Parameter(torch.zeros(self.facts["thinker_vocabulary"], inner), requires_grad=False)
        most = vllm_config.scheduler_config.max_num_batched_tokens
        self.rope_positions = torch.zeros(3, most, dtype=torch.long)
        forbidden = torch.zeros(config.vocab_size, dtype=torch.bool)
        forbidden[self.facts["codebook"] :] = True
        forbidden[self.facts["ends"]] = False
        forbidden[self.facts["codec_bos"]] = True
        self.forbidden = forbidden

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """What codes alone are as input ``[n, width]``; the conditioning adds the text."""
        made: Tensor = self.thinker_to_talker_proj(nn.functional.embedding(input_ids, self.codec_table))
        return made

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: object,
    ) -> Tensor:
        """Hidden states ``[tokens, width]``."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        turned = self.rope_positions[:, : positions.shape[-1]]
        hidden: Tensor = self.language_model.model(None, turned, intermediate_tensors, inputs_embeds)
        return hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Logits of codes; ids that no sound can be made of, but the ends, are not to be had."""
        logits: Tensor | None = self.language_model.compute_logits(hidden_states)
        return None if logits is None else logits.masked_fill(self.forbidden[: logits.shape[-1]], float("-inf"))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Read the Talker's part of the source folder, and the Thinker's embeddings."""
        checkpoint = Checkpoint(self.facts["source"])
        mine = {name: parameter for name, parameter in self.named_parameters() if not name.startswith("language_model")}
        filled: set[str] = set()

        def fill(name: str, tensor: Tensor) -> None:
            if name not in mine or mine[name].shape != tensor.shape:
                raise CheckpointError(f"{checkpoint.folder}: the Talker has no place for {name} {list(tensor.shape)}")
            mine[name].data.copy_(tensor)
            filled.add(name)

        def backbone() -> Iterable[tuple[str, Tensor]]:
            for name, tensor in checkpoint.read(["talker."], label="Talker"):
                inside = name.removeprefix("talker.")
                if inside == "model.embed_tokens.weight":
                    fill("codec_table", tensor)
                elif inside.startswith("codec_head."):
                    yield inside.replace("codec_head", "lm_head"), tensor
                elif inside.startswith("model."):
                    yield inside, tensor
                else:
                    fill(inside, tensor)

        loaded = {f"language_model.{name}" for name in self.language_model.load_weights(backbone())}
        ((_, table),) = checkpoint.read(["thinker.model.embed_tokens.weight"], label="Thinker's embeddings")
        fill("text_table", table)
        if missing := mine.keys() - filled:
            raise CheckpointError(f"{checkpoint.folder}: the Talker misses {min(missing)}")
        return loaded | filled
