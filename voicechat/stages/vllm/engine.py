"""A vLLM engine for a stage: how it is set up for its place, and what requests to it look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from voicechat.contract.family import EngineModel, Prompt
from voicechat.contract.pool import PoolSpec
from voicechat.stages.placement import MIB, Placement
from voicechat.stages.vllm.bookkeeping import CONFIG_KEY

_ROLES = {
    "thinker": ("voicechat.stages.vllm.thinker_worker.ThinkerWorker", "AckScheduler"),
    "talker": ("voicechat.stages.vllm.talker_worker.TalkerWorker", "GatedScheduler"),
}
_SCHEDULERS = "voicechat.stages.vllm.scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What an engine is told beside its model.

    ``role``: thinker or talker; ``family`` and ``model`` name what its workers ask the family for. ``embeddings``: its
    input embeddings are edited. ``facts``: further plain values for its worker.
    """

    role: str
    family: str
    model: Mapping[str, Any]
    pool: PoolSpec
    place: Placement
    max_num_seqs: int
    max_model_len: int
    kv_cache_bytes: int
    prefix_caching: bool
    tokenizer: bool = True
    embeddings: bool = False
    facts: Mapping[str, Any] | None = None


def start_engine(model: EngineModel, spec: EngineSpec) -> Any:
    """An ``AsyncLLM``, loaded. Raises :class:`~voicechat.stages.vllm.adapter.UnknownVllm` for an unknown version."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from voicechat.stages.vllm.adapter import know_architectures

    worker, scheduler = _ROLES[spec.role]
    know_architectures(model.architectures)
    arguments: dict[str, Any] = {
        "model": model.folder,
        "dtype": model.dtype,
        "skip_tokenizer_init": not spec.tokenizer,
        "enable_prefix_caching": spec.prefix_caching,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "kv_cache_memory_bytes": spec.kv_cache_bytes,
        "worker_cls": worker,
        "additional_config": {
            CONFIG_KEY: {
                "pool": msgspec.to_builtins(spec.pool),
                "family": spec.family,
                "model": dict(spec.model),
                "on_device": spec.place.on_gpu,
                **(spec.facts or {}),
            }
        },
        "disable_log_stats": True,
        "generation_config": "vllm",
        **engine_options(spec.place, f"{_SCHEDULERS}.{scheduler}", embeddings=spec.embeddings),
    }
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**{**arguments, **model.options}))


def engine_options(place: Placement, scheduler: str, *, embeddings: bool) -> dict[str, Any]:
    """Arguments for ``AsyncEngineArgs`` that depend on the place.

    ``scheduler`` is the qualified name of the stage's scheduler class for engines that don't schedule ahead; the one
    for those that do has ``Async`` in front of its name. ``embeddings``: the stage edits input embeddings.
    Raises :class:`~voicechat.stages.vllm.adapter.UnknownVllm` for a version that the hooks don't know.
    """
    import vllm

    from voicechat.stages.vllm.adapter import check_version

    check_version(vllm.__version__)
    if not place.on_gpu:
        return {
            "enforce_eager": True,
            "block_size": 32,
            "async_scheduling": False,
            "scheduler_cls": scheduler,
            "enable_prompt_embeds": embeddings,
        }
    module, _, name = scheduler.rpartition(".")
    options: dict[str, Any] = {
        "enforce_eager": not place.graphs,
        "async_scheduling": place.async_scheduling,
        "scheduler_cls": f"{module}.Async{name}" if place.async_scheduling else scheduler,
        # The first runner has a buffer of embeddings only with this on; for the second, the hook brings one.
        "enable_prompt_embeds": embeddings and place.runner == "v1",
        "gpu_memory_utilization": _share(place),
    }
    if place.graphs:
        options["compilation_config"] = graph_options(place)
    return options


def graph_options(place: Placement) -> dict[str, Any]:
    """Which CUDA graphs an engine captures.

    The first runner's graphs of mixed steps gave wrong words on an H200 (vLLM 0.26), not those of decoding.
    """
    if place.compiled:
        return {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    return {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY" if place.runner == "v1" else "FULL"}


def _share(place: Placement) -> float:
    """The part of the GPU's memory that the engine checks for and keeps to."""
    from vllm.platforms import current_platform

    total = current_platform.get_device_total_memory()
    return min(0.99, max(0.01, place.memory_mb * MIB / total))


def engine_prompt(ids: Sequence[int]) -> Any:
    """Token ids in the form that vLLM hands to its engine core without a wait in between.

    A raw prompt would go through a thread first, and a task that is cancelled there leaves the engine without the
    request, so that no worker ever acknowledges its slot.
    """
    from vllm.inputs import tokens_input

    return tokens_input(list(ids))


async def rendered(engine: Any, prompt: Prompt) -> tuple[Any, int]:
    """A family's prompt as the engine takes it, and its length in tokens: placeholders of media are drawn out.

    Raises ValueError, or what :func:`~voicechat.stages.vllm.adapter.client_error` names, for media that can't be read.
    """
    if not prompt.media:
        return engine_prompt(prompt.ids), len(prompt.ids)
    from vllm.inputs import TokensPrompt

    renderer = engine.renderer
    asked = TokensPrompt(prompt_token_ids=list(prompt.ids), multi_modal_data=dict(prompt.media))
    (made,) = await renderer.render_cmpl_async([asked], renderer.default_cmpl_tok_params)
    return made, len(made["prompt_token_ids"])


def sampling_params(facts: Mapping[str, Any], **given: Any) -> Any:
    """vLLM's ``SamplingParams`` of a request that is answered bit by bit; ``facts`` reach scheduler and worker."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(**given, output_kind=RequestOutputKind.DELTA, extra_args=dict(facts))
