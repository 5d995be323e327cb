"""vLLM's insides, as far as they are used: every private name of it stands in this file, and :data:`USED` lists them.


There are two model runners. V1 (``vllm.v1.worker.gpu_model_runner`` and the CPU's) makes input embeddings outside the
model only for engines with prompt embeddings enabled; ``_model_forward`` is the last stop before the model. V2
(``vllm.v1.worker.gpu``) asks its ``model_state`` for the model's inputs, at each step, and once for each CUDA graph it
captures. A buffer for embeddings of text came to V2 after 0.26, so the hook brings its own, which serves every version.
Both are needed: V2 requires Triton, which has no back end for the CPU (vLLM 0.32 refuses to start so).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

OLDEST, NEWEST = (0, 26), (0, 32)
"""Versions of vLLM, first and last, whose sources were read for the hooks."""

Condition = Callable[[Sequence[str], Tensor, Tensor, Callable[[Tensor], Tensor] | None], None]
"""Called with request ids in the batch's order, the token ids' buffer, the embeddings' buffer, and, if the embeddings
are not there yet, what makes them from ids."""


Sampled = Callable[[Sequence[str], Tensor, Tensor], None]
"""Called with request ids in the batch's order, the tokens drawn ``[n]``, and the hidden states ``[n, H]`` they were
drawn from; also of prompts that are not over yet, whose token nobody takes."""


class Used(NamedTuple):
    """One name inside vLLM: ``name`` of ``owner`` (``module:Class`` or ``module``), and what it is used for."""

    owner: str
    name: str
    why: str


USED = (
    Used("vllm.v1.core.sched.scheduler:Scheduler", "schedule", "held requests are set aside around it"),
    Used("vllm.v1.core.sched.scheduler:Scheduler", "running", "requests are set aside by taking them out of this list"),
    Used("vllm.v1.core.sched.scheduler:Scheduler", "waiting", "an engine with waiting requests is not put to sleep"),
    Used("vllm.v1.core.sched.scheduler:Scheduler", "finished_req_ids", "an engine that has these to tell stays awake"),
    Used("vllm.v1.core.sched.scheduler:Scheduler", "_free_request", "slots of requests that no worker saw come back"),
    Used("vllm.v1.core.sched.async_scheduler:AsyncScheduler", "schedule", "held requests are set aside around it"),
    Used("vllm.v1.request:Request", "num_output_placeholders", "steps on their way, whose tokens are not known"),
    Used("vllm.v1.request:Request", "all_token_ids", "how far the Talker has come"),
    Used("vllm.v1.request:Request", "sampling_params", "carries the slot, as extra_args"),
    Used("vllm.v1.core.sched.output:SchedulerOutput", "scheduled_new_reqs", "which requests begin in a step"),
    Used("vllm.v1.core.sched.output:SchedulerOutput", "scheduled_cached_reqs", "which requests go on in a step"),
    Used("vllm.v1.core.sched.output:SchedulerOutput", "num_scheduled_tokens", "how many tokens each has in a step"),
    Used("vllm.v1.core.sched.output:SchedulerOutput", "finished_req_ids", "which slots are let go of"),
    Used("vllm.v1.core.sched.output:NewRequestData", "num_computed_tokens", "where a step's tokens begin"),
    Used("vllm.v1.core.sched.output:CachedRequestData", "num_computed_tokens", "where a step's tokens begin"),
    Used("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "_model_forward", "embeddings are edited before it (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "_sample", "tokens are seen behind it (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "input_ids", "the token ids' buffer (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "inputs_embeds", "the embeddings' buffer (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "input_batch", "order of requests in a batch (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "execute_model_state", "hidden states of a step (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:GPUModelRunner", "get_model", "the model that runs (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:ExecuteModelState", "hidden_states", "hidden states of a step (V1)"),
    Used("vllm.v1.worker.gpu_model_runner:ExecuteModelState", "sample_hidden_states", "tokens are drawn from it (V1)"),
    Used("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "model_state", "embeddings are put in by it (V2)"),
    Used("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "input_buffers", "the token ids' buffer (V2)"),
    Used("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "max_num_tokens", "size of the embeddings' buffer (V2)"),
    Used("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "execute_model_state", "hidden states of a step (V2)"),
    Used("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "sample", "tokens are seen behind it (V2)"),
    Used("vllm.v1.worker.gpu.model_runner:GPUModelRunner", "get_model", "the model that runs (V2)"),
    Used("vllm.v1.worker.gpu.model_runner:ExecuteModelState", "hidden_states", "hidden states of a step (V2)"),
    Used("vllm.v1.worker.gpu.model_runner:ExecuteModelState", "input_batch", "order of requests in a batch (V2)"),
    Used("vllm.v1.worker.gpu.input_batch:InputBatch", "req_ids", "order of requests in a batch (V2)"),
    Used("vllm.v1.worker.gpu.input_batch:InputBatch", "logits_indices", "the last position of each request (V2)"),
    Used("vllm.v1.worker.gpu.input_batch:InputBatch", "num_tokens_after_padding", "embeddings of a step (V2)"),
    Used("vllm.v1.worker.gpu.model_states.interface:ModelState", "prepare_inputs", "embeddings are put in here (V2)"),
    Used("vllm.v1.worker.gpu.model_states.interface:ModelState", "prepare_dummy_inputs", "and here for graphs (V2)"),
    Used("vllm.v1.worker.cpu_worker:CPUWorker", "execute_model", "a step; the workers stand around it"),
    Used("vllm.v1.worker.gpu_worker:Worker", "execute_model", "a step; the workers stand around it"),
    Used("vllm.v1.worker.gpu_worker:Worker", "compile_or_warm_up_model", "our graphs are captured behind it"),
    Used("vllm.v1.worker.gpu_worker:Worker", "load_model", "hooks are put in behind it"),
    Used("vllm.v1.worker.gpu_worker:Worker", "init_device", "the pool is opened behind it"),
    Used("vllm.v1.engine.async_llm:AsyncLLM", "renderer", "prompts with sounds and images are made ready by it"),
    Used("vllm.v1.engine.async_llm:AsyncLLM", "output_processor", "its time is taken by the profile"),
    Used("vllm.v1.engine.async_llm:AsyncLLM", "collective_rpc", "the profile asks the worker by it"),
    Used("vllm.v1.engine.async_llm:AsyncLLM", "is_sleeping", "a call to the engine core and back answers pings"),
    Used("vllm.v1.engine.async_llm:AsyncLLM", "errored", "the engine core has died"),
    Used("vllm.inputs", "tokens_input", "prompts go to the engine core without a wait"),
)
"""Every name of vLLM's insides that is used, here or in this folder. ``tests/stages/vllm/test_adapter.py`` looks for
each of them in the vLLM that is installed."""


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


class SampleHook:
    """Stands behind an engine's sampler, and lets ``sampled`` see the tokens of every real step."""

    def __init__(self, runner: Any, active: Callable[[], bool], sampled: Sampled) -> None:
        self._runner = runner
        self._active = active
        self._sampled = sampled
        self._drawn_from: Tensor | None = None
        if is_v2(runner):
            self._hook_v2()
        else:
            self._hook_v1()

    def before(self) -> None:
        """Once a step has run, before its tokens are drawn."""
        state = self._runner.execute_model_state
        if state is not None and not is_v2(self._runner):
            self._drawn_from = state.sample_hidden_states

    def _hook_v1(self) -> None:
        runner, draw = self._runner, self._runner._sample

        def drawn(logits: Any, *args: Any, **kwargs: Any) -> Any:
            output = draw(logits, *args, **kwargs)
            if self._drawn_from is not None and self._active():
                hidden, self._drawn_from = self._drawn_from, None
                ids = list(runner.input_batch.req_ids)
                self._sampled(ids, output.sampled_token_ids[: len(ids), 0], hidden[: len(ids)])
            return output

        runner._sample = drawn

    def _hook_v2(self) -> None:
        runner, draw = self._runner, self._runner.sample

        def drawn(hidden_states: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            made = draw(hidden_states, input_batch, *args, **kwargs)
            if self._active():
                ids = input_batch.req_ids
                last = hidden_states[input_batch.logits_indices][: len(ids)]
                self._sampled(ids, made[0].sampled_token_ids[: len(ids), 0], last)
            return made

        runner.sample = drawn


def step_hidden(runner: Any) -> Tensor | None:
    """Last hidden states ``[tokens, H]`` of the step that just ran; None if none did."""
    state = runner.execute_model_state
    return None if state is None else state.hidden_states


def loaded_model(runner: Any) -> Any:
    """The ``nn.Module`` that runs."""
    return runner.get_model()


def batch_order(runner: Any) -> list[str]:
    """Request ids in the row order of the forward pass that just ran."""
    batch = getattr(runner.execute_model_state, "input_batch", None)  # V2 keeps it there
    ids: list[str] = (runner.input_batch if batch is None else batch).req_ids
    return ids


def start_positions(output: Any) -> dict[str, int]:
    """For each request of a ``SchedulerOutput``, the position of its first token in this step."""
    cached = output.scheduled_cached_reqs
    starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for request in output.scheduled_new_reqs:
        starts[request.req_id] = request.num_computed_tokens
    return starts


def request_facts(sampling_params: Any) -> dict[str, Any] | None:
    """What the host attached to a request (``slot``, ``ack``, …), or None for a request without a slot."""
    facts = getattr(sampling_params, "extra_args", None) or {}
    return facts if "slot" in facts else None


def platform_worker() -> Any:
    """The class that the stages' workers derive from: that of the platform that vLLM found."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    return Worker


def know_architectures(architectures: Mapping[str, str]) -> None:
    """Tell this process's vLLM of model classes, ``module:Class`` by the names that ``config.json`` gives them."""
    from vllm import ModelRegistry

    for name, place in architectures.items():
        ModelRegistry.register_model(name, place)
