"""From settings and assembled folders to a coordinator that can be started."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from voicechat import gpus
from voicechat.assemble import AssembledPaths
from voicechat.assemble.folder import context_length, hidden_size
from voicechat.assemble.projection import projection_file
from voicechat.brain.stage import BrainOptions, BrainStage
from voicechat.cascade.chunks import ChunkPolicy
from voicechat.cascade.coordinator import Coordinator
from voicechat.cascade.stage import Stage, StageLike
from voicechat.config import ChunkSettings, Settings
from voicechat.contract.cascade import ModelInfo
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.sound import EARS_RATE, PCM_RATE
from voicechat.models.embedded.thinker import SYSTEM_PROMPT
from voicechat.stages import ears, keeper, talker, thinker, voicebox
from voicechat.stages.ears import EarsConfig, EarsSpec

log = logging.getLogger(__name__)

RIGHT_CONTEXT = 2
"""Steps of the future that the embedded VoiceBox looks at; see ``voicechat.models.embedded.voicebox``."""


def build(settings: Settings, paths: AssembledPaths) -> Coordinator:
    """A coordinator for the embedded family, its pool allocated. Raises OSError if shared memory is too small."""
    voice = json.loads((paths.weights / "voice.json").read_text(encoding="utf-8"))
    settings = within_context(settings, paths)
    spec = pool_spec(settings, paths)
    on_gpu = settings.device == "cuda"
    policies = {
        True: chunk_policy(settings.voicebox.latency_first, on_gpu=on_gpu),
        False: chunk_policy(settings.voicebox.quality_first, on_gpu=on_gpu),
    }
    level = logging.getLevelNamesMapping()[settings.server.log_level.upper()]
    helpers: dict[str, Callable[..., StageLike]] = {}
    if (keeping := gpus.keeper_config(settings, spec, level)) is not None:
        helpers["keeper"] = functools.partial(Stage, "keeper", keeper.run, (keeping,))
    return Coordinator(
        model_info(settings, voice["talker"]["voices"], voice.get("about", {})),
        Pool(spec, create=True),
        {
            **helpers,
            **thinking(settings, paths, spec, level),
            "talker": functools.partial(
                Stage, "talker", talker.run, (talker_config(settings, paths, spec, voice, level),)
            ),
            "voicebox": functools.partial(
                Stage, "voicebox", voicebox.run, (voicebox_config(settings, paths, spec, policies, level),)
            ),
        },
        policies,
        decodes=settings.voicebox.max_concurrency * settings.voicebox.max_batch,
        acquire_timeout=settings.pool.acquire_timeout_s,
        max_waiting=settings.pool.max_waiting,
        hidden_states=settings.brain.url is None,
    )


def thinking(
    settings: Settings, paths: AssembledPaths, spec: PoolSpec, level: int
) -> dict[str, Callable[..., StageLike]]:
    """The Thinker, here with its ears or a brain elsewhere, and the ears if they have a process of their own.

    They have one beside a brain elsewhere, and on a GPU (:mod:`voicechat.stages.ears` says why).
    """
    made: dict[str, Callable[..., StageLike]] = {}
    if settings.brain.url is None:
        config = thinker_config(settings, paths, spec, level)
        made["thinker"] = functools.partial(Stage, "thinker", thinker.run, (config,))
    else:
        made["thinker"] = functools.partial(BrainStage, brain_options(settings))
    if settings.brain.url is not None or settings.ears_on_gpu:
        hearing = EarsConfig(ears=ears_spec(settings, paths), pool=spec, log_level=level)
        made["ears"] = functools.partial(Stage, "ears", ears.run, (hearing,))
    return made


def brain_options(settings: Settings) -> BrainOptions:
    """Where the brain is, and how it is asked; there must be one."""
    mine = settings.brain
    assert mine.url is not None
    assert mine.model is not None
    return BrainOptions(
        url=mine.url,
        model=mine.model,
        api_key=mine.api_key,
        system_prompt=settings.model.thinker.system_prompt or SYSTEM_PROMPT,
        max_tokens=mine.max_tokens,
        connect_timeout=mine.connect_timeout_s,
        first_token_timeout=mine.first_token_timeout_s,
        idle_timeout=mine.idle_timeout_s,
    )


def model_info(
    settings: Settings, voices: list[str], about: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> ModelInfo:
    """What faces say of the model, and of its voices (``about`` of ``voice.json``)."""
    return ModelInfo(
        name=settings.model.name,
        voices=tuple(voices),
        default_voice=voices[0],
        sees=False,
        context_tokens=settings.thinker.max_model_len if settings.brain.url is None else settings.brain.context_tokens,
        created=int(time.time()),
        about={voice: dict(about[voice]) for voice in voices if voice in about},
    )


def within_context(settings: Settings, paths: AssembledPaths) -> Settings:
    """The settings, with no more tokens than the Thinker was made for."""
    if settings.brain.url is not None:
        return settings
    most = context_length(paths.thinker)
    if most is None or most >= settings.thinker.max_model_len:
        return settings
    log.info("the Thinker reads %d tokens at most: thinker.max_model_len is lowered to that", most)
    fitting = settings.thinker.model_copy(update={"max_model_len": most})
    return settings.model_copy(update={"thinker": fitting})


def pool_spec(settings: Settings, paths: AssembledPaths) -> PoolSpec:
    """Size of the pool: slots as set, rows as wide as the Thinker; a brain elsewhere shows no hidden states."""
    rows, width = (settings.pool.max_rows, hidden_size(paths.thinker)) if settings.brain.url is None else (1, 1)
    return PoolSpec(
        name=PoolSpec.new_name(),
        slots=settings.pool.slots,
        hidden_size=width,
        max_rows=rows,
        max_symbols=settings.pool.max_symbols,
        pcm_samples=int(settings.pool.ring_seconds * PCM_RATE),
        bays=settings.pool.slots,
        bay_samples=int(settings.server.max_audio_seconds * EARS_RATE),
        rows=gpus.rows_place(settings),
    )


def chunk_policy(settings: ChunkSettings, *, on_gpu: bool = False) -> ChunkPolicy:
    """The settings of one chunk mode, with the VoiceBox's own look-ahead.

    On a GPU a reply's last chunk is of a length that there are CUDA graphs for: that of a middle chunk, or half a chunk
    more, as a chunk is that takes a short tail along.
    """
    most = settings.max_chunk
    steady = settings.left_context + most + RIGHT_CONTEXT
    return ChunkPolicy(
        settings.first_chunk,
        settings.growth,
        most,
        settings.left_context,
        RIGHT_CONTEXT,
        settings.ease,
        (steady, steady + most // 2) if on_gpu else (),
    )


def _lengths(policy: ChunkPolicy) -> set[int]:
    """Every length of a chunk that a policy makes while a reply grows."""
    lengths = set()
    done, size, grown = 0, 0.0, float(policy.first)
    while grown > size or done < policy.left:
        size = grown
        lengths.add(min(done, policy.left) + int(size) + policy.right)
        done += int(size)
        grown = min(size * policy.growth, policy.largest)
    return lengths | {policy.left + int(size) + policy.right}


def thinker_config(settings: Settings, paths: AssembledPaths, spec: PoolSpec, level: int) -> thinker.ThinkerConfig:
    """What the Thinker's process is told."""
    mine, model = settings.thinker, settings.model.thinker
    return thinker.ThinkerConfig(
        model_dir=str(paths.thinker),
        ears=None if settings.ears_on_gpu else ears_spec(settings, paths),
        pool=spec,
        dtype=model.dtype,
        max_num_seqs=mine.max_num_seqs,
        max_model_len=mine.max_model_len,
        kv_cache_bytes=mine.kv_cache_mb << 20,
        threads=mine.threads,
        default_max_tokens=mine.default_max_tokens,
        temperature=mine.temperature,
        top_p=mine.top_p,
        repetition_penalty=mine.repetition_penalty,
        system_prompt=model.system_prompt or SYSTEM_PROMPT,
        log_level=level,
        place=gpus.place(settings, "thinker"),
        cores=mine.cores or (),
    )


def ears_spec(settings: Settings, paths: AssembledPaths) -> EarsSpec:
    """Which ears listen, and how."""
    mine = settings.ears
    return EarsSpec(
        dir=str(paths.ears),
        threads=mine.threads,
        beam_size=mine.beam_size,
        compute_type=mine.compute_type,
        workers=mine.workers,
        max_batch=mine.max_batch,
        place=gpus.place(settings, "ears"),
    )


def talker_config(
    settings: Settings,
    paths: AssembledPaths,
    spec: PoolSpec,
    voice: dict[str, Any],
    level: int,
) -> talker.TalkerConfig:
    """What the Talker's process is told. A brain elsewhere, and a Thinker that the weights know nothing of and no
    projection was fitted for, are read by their text alone."""
    mine, source = settings.talker, settings.model.thinker
    projection = settings.model.talker.projection if settings.brain.url is None else None
    known = [name for name, _ in voice["talker"]["thinkers"]] if settings.brain.url is None else []
    return talker.TalkerConfig(
        model_dir=str(paths.talker),
        weights_dir=str(paths.weights),
        thinker=source.source if projection is None and source.dir is None and source.source in known else None,
        projection=None if projection is None else str(projection_file(projection)),
        pool=spec,
        dtype=settings.model.talker.dtype,
        max_num_seqs=mine.max_num_seqs,
        max_model_len=mine.max_model_len,
        kv_cache_bytes=mine.kv_cache_mb << 20,
        temperature=voice["sampling"]["temperature"] if mine.temperature is None else mine.temperature,
        top_k=voice["sampling"]["top_k"] if mine.top_k is None else mine.top_k,
        threads=mine.threads,
        log_level=level,
        place=gpus.place(settings, "talker"),
        cores=mine.cores or (),
    )


def voicebox_config(
    settings: Settings, paths: AssembledPaths, spec: PoolSpec, policies: dict[bool, ChunkPolicy], level: int
) -> voicebox.VoiceBoxConfig:
    """What the VoiceBox's process is told, with every chunk length that the two modes make while a reply grows.

    On a GPU also with those that they make beside other replies: there an unknown length costs more than time.
    """
    shapes = {length for policy in policies.values() for length in policy.lengths}
    most = settings.pool.slots if settings.device == "cuda" else 1
    for policy in {policy.eased(others) for policy in policies.values() for others in range(most)}:
        shapes |= _lengths(policy)
    return voicebox.VoiceBoxConfig(
        weights_dir=str(paths.weights),
        pool=spec,
        max_batch=settings.voicebox.max_batch,
        threads=settings.voicebox.threads,
        shapes=tuple(sorted(shapes)),
        log_level=level,
        place=gpus.place(settings, "voicebox"),
        cores=settings.voicebox.cores or (),
    )
