"""Qwen3-Omni's Talker for vLLM: its mixture of experts, and the small nets around it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsPP
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from voicechat.models.qwen3_omni.predictor import CodePredictor, PredictorConfig
from voicechat.models.qwen_common.checkpoint import Checkpoint, CheckpointError


class Projection(nn.Module):
    """From the Thinker's width to the Talker's: two layers (``text_projection``, ``hidden_projection``)."""

    def __init__(self, inner: int, middle: int, outer: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(inner, middle)
        self.linear_fc2 = nn.Linear(middle, outer)

    def forward(self, hidden: Tensor) -> Tensor:
        made: Tensor = self.linear_fc2(F.silu(self.linear_fc1(hidden)))
        return made


class Qwen3OmniTalker(nn.Module, SupportsPP):
    """First codes from conditioned embeddings. Positions are those of :attr:`rope_positions`, [3, tokens of a step].

    The engine's configuration is made by :func:`voicechat.models.qwen3_omni.engines.talker_config`.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.facts: dict[str, Any] = config.voicechat
        text = copy.deepcopy(config)
        text.rope_parameters = self.facts["rope_parameters"]
        inside = vllm_config.with_hf_config(text, architectures=["Qwen3MoeForCausalLM"])
        inside.model_config.hf_text_config = text  # the layers read this one
        self.language_model = Qwen3MoeForCausalLM(vllm_config=inside, prefix=prefix)
        self.make_empty_intermediate_tensors = self.language_model.make_empty_intermediate_tensors
        inner, width, middle = self.facts["thinker_hidden_size"], config.hidden_size, self.facts["intermediate_size"]
        self.text_projection = Projection(inner, middle, width)
        self.hidden_projection = Projection(inner, middle, width)
        self.code_predictor = CodePredictor(PredictorConfig.of(self.facts["code_predictor"]))
        self.text_table = nn.Parameter(torch.zeros(self.facts["thinker_vocabulary"], inner), requires_grad=False)
        most = vllm_config.scheduler_config.max_num_batched_tokens
        self.rope_positions = torch.zeros(3, most, dtype=torch.long)
        forbidden = torch.zeros(config.vocab_size, dtype=torch.bool)
        forbidden[config.vocab_size - 1024 :] = True
        forbidden[self.facts["codec_eos"]] = False
        self.forbidden = forbidden

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Embeddings of first codes."""
        made: Tensor = self.language_model.model.embed_input_ids(input_ids)
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
        turned = self.rope_positions[:, : positions.shape[-1]]
        hidden: Tensor = self.language_model.model(input_ids, turned, intermediate_tensors, inputs_embeds)
        return hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Logits of first codes; ids that are no codes, but the end, are not to be had."""
        logits: Tensor | None = self.language_model.compute_logits(hidden_states)
        return None if logits is None else logits.masked_fill(self.forbidden[: logits.shape[-1]], float("-inf"))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Read the Talker's part of the source folder, and the Thinker's embeddings."""
        checkpoint = Checkpoint(self.facts["source"])
        rest: dict[str, Tensor] = {}

        def backbone() -> Iterable[tuple[str, Tensor]]:
            for name, tensor in checkpoint.read(["talker."], label="Talker"):
                inside = name.removeprefix("talker.")
                if inside.startswith("model.codec_embedding."):
                    yield inside.replace("codec_embedding", "embed_tokens"), tensor
                elif inside.startswith("codec_head."):
                    yield inside.replace("codec_head", "lm_head"), tensor
                elif inside.startswith("model."):
                    yield inside, tensor
                else:
                    rest[inside] = tensor

        loaded = {f"language_model.{name}" for name in self.language_model.load_weights(backbone())}
        part = "code_predictor."
        predictor = {name.removeprefix(part): rest.pop(name) for name in list(rest) if name.startswith(part)}
        try:
            self.code_predictor.load(predictor)
        except KeyError as error:
            raise CheckpointError(f"{checkpoint.folder}: the code predictor misses the tensor {error}") from None
        for name in ("text_projection", "hidden_projection"):
            mine = {key.removeprefix(f"{name}."): rest.pop(key) for key in list(rest) if key.startswith(f"{name}.")}
            getattr(self, name).load_state_dict(mine)
        if rest:
            raise CheckpointError(f"{checkpoint.folder}: the Talker has no parameter for talker.{min(rest)}")
        ((_, table),) = checkpoint.read(["thinker.model.embed_tokens.weight"], label="Thinker's embeddings")
        self.text_table.data.copy_(table)
        others = {name for name, _ in self.named_parameters() if not name.startswith("language_model.")}
        return loaded | others
