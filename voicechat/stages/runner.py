"""vLLM's two model runners as the hooks see them, and which versions of vLLM they were written against.

V1 (``vllm.v1.worker.gpu_model_runner`` and the CPU's) makes input embeddings outside the model only for engines with
prompt embeddings enabled; ``_model_forward`` is the last stop before the model. V2 (``vllm.v1.worker.gpu``) asks its
``model_state`` for the model's inputs, at each step, and once for each CUDA graph it captures. A buffer for embeddings
of text came to V2 after 0.26, so the hook brings its own, which serves every version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

OLDEST, NEWEST = (0, 26), (0, 32)
"""Versions of vLLM, first and last, whose sources were read for the hooks."""

Condition = Callable[[Sequence[str], Tensor, Tensor, Callable[[Tensor], Tensor] | None], None]
"""Called with request ids in the batch's order, the token ids' buffer, the embeddings' buffer, and, if the embeddings
are not there yet, what makes them from ids."""


class UnknownVllm(RuntimeError):
    """This vLLM can't be hooked into; ``str()`` says which one it is and why."""


def check_version(version: str) -> None:
    """Raise :class:`UnknownVllm` for a version older or newer than those that the hooks were written against."""
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= number <= NEWEST:
        first, last = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        raise UnknownVllm(f"vLLM {version} is installed; voicechat works with {first} to {last}")


def client_error() -> type[Exception]:
    """What vLLM raises for a request that can't be run; in 0.26 a ValueError."""
    from vllm import exceptions

    found: type[Exception] = getattr(exceptions, "VLLMClientError", exceptions.VLLMValidationError)
    return found


def is_v2(runner: Any) -> bool:
    """True for vLLM's second model runner. Only it has a model state, once its model is loaded."""
    return hasattr(runner, "model_state")


class InputHook:
    """Stands between an engine and its model, and lets ``condition`` edit the input embeddings of every real step.

    ``active`` tells real steps from those in which the engine profiles or warms up. ``ids`` and ``embeddings`` are the
    buffers that every step uses; CUDA graphs over them stay valid.
    """

    def __init__(self, runner: Any, active: Callable[[], bool], condition: Condition) -> None:
        self._runner = runner
        self._active = active
        self._condition = condition
        self.embed: Callable[[Tensor], Tensor] | None = None
        if is_v2(runner):
            self._hook_v2()
        elif hasattr(runner, "_model_forward"):
            self._hook_v1()
        else:
            import vllm

            raise UnknownVllm(f"the model runner of vLLM {vllm.__version__} has neither of the known hooks")

    def _hook_v1(self) -> None:
        runner = self._runner
        forward = runner._model_forward
        self.ids: Tensor = runner.input_ids.gpu
        self.embeddings: Tensor = runner.inputs_embeds.gpu

        def conditioned(
            input_ids: Any = None,
            positions: Any = None,
            intermediate_tensors: Any = None,
            inputs_embeds: Any = None,
            **kwargs: Any,
        ) -> Any:
            if self._active():
                if inputs_embeds is None:
                    raise UnknownVllm("the engine runs without input embeddings: prompt embeddings are not enabled")
                self._condition(list(runner.input_batch.req_ids), self.ids, self.embeddings, None)
            return forward(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)

        runner._model_forward = conditioned

    def _hook_v2(self) -> None:
        runner, state = self._runner, self._runner.model_state
        self.ids = runner.input_buffers.input_ids
        self.embeddings = torch.zeros(
            (runner.max_num_tokens, runner.model_config.get_inputs_embeds_size()),
            dtype=runner.dtype,
            device=runner.device,
        )
        self.embed = runner.model.embed_input_ids
        prepare_inputs, prepare_dummy_inputs = state.prepare_inputs, state.prepare_dummy_inputs

        def real(input_batch: Any, req_states: Any) -> dict[str, Any]:
            if self._active():
                self._condition(input_batch.req_ids, self.ids, self.embeddings, self.embed)
            return instead(prepare_inputs(input_batch, req_states), input_batch.num_tokens_after_padding)

        def dummy(num_reqs: int, num_tokens: int) -> dict[str, Any]:
            return instead(prepare_dummy_inputs(num_reqs, num_tokens), num_tokens)

        def instead(inputs: dict[str, Any], count: int) -> dict[str, Any]:
            return {**inputs, "input_ids": None, "inputs_embeds": self.embeddings[:count]}

        state.prepare_inputs, state.prepare_dummy_inputs = real, dummy
