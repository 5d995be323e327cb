"""From settings and assembled folders to a coordinator that can be started."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable

from voicechat import gpus
from voicechat.assemble import AssembledPaths
from voicechat.brain.ears import RemoteEars, RemoteEarsOptions
from voicechat.brain.stage import BrainOptions, BrainStage
from voicechat.cascade.chunks import ChunkPolicy
from voicechat.cascade.coordinator import Coordinator
from voicechat.cascade.stage import Stage, StageLike
from voicechat.config import ChunkSettings, Settings
from voicechat.contract.cascade import ModelInfo, Watermark
from voicechat.contract.family import Facts
from voicechat.contract.hearing import EarsFacts, HearingOptions
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.sound import EARS_RATE, MIN_SPEED, PCM_RATE
from voicechat.marking import own_key, own_mark
from voicechat.models.ears.folder import ears_facts
from voicechat.models.ears.refusal import check_options
from voicechat.models.ears.whisper import settled_hearing
from voicechat.stages import ears, keeper, talker, thinker, voicebox
from voicechat.stages.ears import EarsConfig, EarsSpec

log = logging.getLogger(__name__)


def build(settings: Settings, paths: AssembledPaths) -> Coordinator:
    """A coordinator for a model, its pool allocated.

    Raises OSError if shared memory is too small, ValueError for settings that the model can't be run with, and either
    if there is no key for the watermark.
    """
    facts, mark = paths.facts, marking(settings)
    settings = within_context(settings, facts)
    spec = pool_spec(settings, facts)
    on_gpu = settings.device == "cuda"
    policies = {
        True: chunk_policy(settings.voicebox.latency_first, facts.look_ahead, on_gpu=on_gpu),
        False: chunk_policy(settings.voicebox.quality_first, facts.look_ahead, on_gpu=on_gpu),
    }
    level = logging.getLevelNamesMapping()[settings.server.log_level.upper()]
    helpers: dict[str, Callable[..., StageLike]] = {}
    if (keeping := gpus.keeper_config(settings, spec, level)) is not None:
        helpers["keeper"] = functools.partial(Stage, "keeper", keeper.run, (keeping,))
    info = model_info(settings, facts, own_mark(settings) if mark else None)
    return Coordinator(
        dataclasses.replace(info, ears=hearing_facts(settings, paths)),
        Pool(spec, create=True),
        {
            **helpers,
            **thinking(settings, paths, spec, level),
            "talker": functools.partial(Stage, "talker", talker.run, (talker_config(settings, facts, spec, level),)),
            "voicebox": functools.partial(
                Stage, "voicebox", voicebox.run, (voicebox_config(settings, facts, spec, policies, level, mark),)
            ),
        },
        policies,
        decodes=settings.voicebox.max_concurrency * settings.voicebox.max_batch,
        acquire_timeout=settings.pool.acquire_timeout_s,
        max_waiting=settings.pool.max_waiting,
        hidden_states=facts.rows is not None,
        thinks=settings.brain.url is None,
        step_samples=facts.step_samples,
        step_bytes=facts.step_bytes,
    )


def hearing_facts(settings: Settings, paths: AssembledPaths) -> EarsFacts:
    """What the ears can. Raises ValueError for a folder that holds none, or a language that they don't know."""
    if settings.ears.url is not None:
        assert settings.ears.model is not None
        return EarsFacts(settings.ears.model, translates=True, words=True)
    facts = ears_facts(paths.ears)
    if settings.ears.language is not None:
        check_options(facts, HearingOptions(settings.ears.language))
    return facts


def marking(settings: Settings) -> voicebox.Mark | None:
    """What the sound is marked with; None if it is not, which is said in the log."""
    if not settings.watermark.enabled:
        log.warning("watermark.enabled is false: the sound that is made leaves unmarked")
        return None
    key, own = own_key(settings, make=True), own_mark(settings)
    log.info("all sound is marked: payload %04x, key %s", own.payload, own.key_id)
    return voicebox.Mark(key.secret, own.payload)


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
        made["thinker"] = functools.partial(BrainStage, brain_options(settings, paths.facts.system_prompt))
    if settings.ears.url is not None:
        made["ears"] = functools.partial(RemoteEars, remote_ears(settings), spec, settled_hearing)
    elif settings.brain.url is not None or settings.ears_on_gpu:
        hearing = EarsConfig(ears=ears_spec(settings, paths), pool=spec, log_level=level)
        made["ears"] = functools.partial(Stage, "ears", ears.run, (hearing,))
    return made


def brain_options(settings: Settings, system_prompt: str) -> BrainOptions:
    """Where the brain is, and how it is asked; there must be one."""
    mine = settings.brain
    assert mine.url is not None
    assert mine.model is not None
    return BrainOptions(
        url=mine.url,
        model=mine.model,
        api_key=mine.api_key,
        system_prompt=system_prompt,
        max_tokens=mine.max_tokens,
        connect_timeout=mine.connect_timeout_s,
        first_token_timeout=mine.first_token_timeout_s,
        idle_timeout=mine.idle_timeout_s,
    )


def model_info(settings: Settings, facts: Facts, watermark: Watermark | None = None) -> ModelInfo:
    """What faces say of the model, and of its voices."""
    thinks = settings.brain.url is None
    return ModelInfo(
        name=settings.model.name,
        voices=facts.voices,
        default_voice=facts.voices[0],
        sees=facts.sees and thinks,
        hears=facts.hears and thinks,
        most_images=facts.most_images,
        most_sounds=facts.most_sounds,
        context_tokens=settings.thinker.max_model_len if thinks else settings.brain.context_tokens,
        created=int(time.time()),
        about=facts.about,
        watermark=watermark,
    )


def within_context(settings: Settings, facts: Facts) -> Settings:
    """The settings, with no more tokens than the Thinker was made for.

    Raises ValueError if the pool has no room for the rows of a whole context, where there is one for each position.
    """
    if settings.brain.url is not None:
        return settings
    most = facts.context_tokens
    if most is not None and most < settings.thinker.max_model_len:
        log.info("the Thinker reads %d tokens at most: thinker.max_model_len is lowered to that", most)
        fitting = settings.thinker.model_copy(update={"max_model_len": most})
        settings = settings.model_copy(update={"thinker": fitting})
    needed = settings.thinker.max_model_len
    if facts.rows is not None and facts.rows.begin == "prompt" and settings.pool.max_rows < needed:
        raise ValueError(
            f"pool.max_rows ({settings.pool.max_rows}) is less than thinker.max_model_len ({needed}): this model's "
            "Talker reads a row for each token of the prompt"
        )
    return settings


def pool_spec(settings: Settings, facts: Facts) -> PoolSpec:
    """Size of the pool: slots as set, lanes as wide as the model's; a brain elsewhere shows no hidden states."""
    rows, width = (settings.pool.max_rows, facts.rows.width) if facts.rows is not None else (1, 1)
    return PoolSpec(
        name=PoolSpec.new_name(),
        slots=settings.pool.slots,
        hidden_size=width,
        max_rows=rows,
        max_text_rows=settings.pool.max_text_rows,
        pcm_samples=max(int(settings.pool.ring_seconds * PCM_RATE), longest_sound(settings, facts)),
        bays=settings.pool.slots,
        bay_samples=int(settings.server.max_audio_seconds * EARS_RATE),
        text_columns=facts.text_columns,
        extra_bytes=facts.extra_bytes,
        max_steps=settings.talker.max_model_len,
        rows=gpus.rows_place(settings),
    )


def longest_sound(settings: Settings, facts: Facts) -> int:
    """Samples of the longest chunk (a last one takes a short tail along) at the slowest tempo, and what was held."""
    chunks = settings.voicebox.latency_first, settings.voicebox.quality_first
    steps = max(policy.max_chunk + policy.max_chunk // 2 for policy in chunks)
    return int((steps * facts.step_samples + PCM_RATE // 10) / MIN_SPEED) + PCM_RATE // 10


def chunk_policy(settings: ChunkSettings, look_ahead: int, *, on_gpu: bool = False) -> ChunkPolicy:
    """The settings of one chunk mode, with the VoiceBox's own look-ahead.

    On a GPU a reply's last chunk is of a length that there are CUDA graphs for: that of a middle chunk, or half a chunk
    more, as a chunk is that takes a short tail along.
    """
    most = settings.max_chunk
    steady = settings.left_context + most + look_ahead
    return ChunkPolicy(
        settings.first_chunk,
        settings.growth,
        most,
        settings.left_context,
        look_ahead,
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
    mine, facts = settings.thinker, paths.facts
    return thinker.ThinkerConfig(
        family=settings.model.family,
        model=dict(facts.thinker),
        rows_begin=facts.rows.begin if facts.rows is not None else "predicting",
        ears=None if settings.ears_on_gpu or settings.ears.url is not None else ears_spec(settings, paths),
        pool=spec,
        max_num_seqs=mine.max_num_seqs,
        max_model_len=mine.max_model_len,
        kv_cache_bytes=mine.kv_cache_mb << 20,
        threads=mine.threads,
        default_max_tokens=mine.default_max_tokens,
        temperature=mine.temperature,
        top_p=mine.top_p,
        repetition_penalty=mine.repetition_penalty,
        system_prompt=facts.system_prompt,
        log_level=level,
        place=gpus.place(settings, "thinker"),
        cores=mine.cores or (),
    )


def remote_ears(settings: Settings) -> RemoteEarsOptions:
    """Where the ears are, and how they are asked; there must be some."""
    mine = settings.ears
    assert mine.url is not None
    assert mine.model is not None
    return RemoteEarsOptions(
        url=mine.url, model=mine.model, api_key=mine.api_key, language=mine.language, timeout=mine.timeout_s
    )


def ears_spec(settings: Settings, paths: AssembledPaths) -> EarsSpec:
    """Which ears listen, and how."""
    mine = settings.ears
    return EarsSpec(
        dir=str(paths.ears),
        language=mine.language,
        threads=mine.threads,
        beam_size=mine.beam_size,
        compute_type=mine.compute_type,
        workers=mine.workers,
        max_batch=mine.max_batch,
        place=gpus.place(settings, "ears"),
    )


def talker_config(settings: Settings, facts: Facts, spec: PoolSpec, level: int) -> talker.TalkerConfig:
    """What the Talker's process is told. Sampling is as set, else as the model advises."""
    mine = settings.talker
    asked = {"temperature": mine.temperature, "top_k": mine.top_k}
    return talker.TalkerConfig(
        family=settings.model.family,
        model=dict(facts.talker),
        pool=spec,
        max_num_seqs=mine.max_num_seqs,
        max_model_len=mine.max_model_len,
        kv_cache_bytes=mine.kv_cache_mb << 20,
        sampling={**facts.sampling, **{name: value for name, value in asked.items() if value is not None}},
        threads=mine.threads,
        log_level=level,
        place=gpus.place(settings, "talker"),
        cores=mine.cores or (),
    )


def voicebox_config(
    settings: Settings,
    facts: Facts,
    spec: PoolSpec,
    policies: dict[bool, ChunkPolicy],
    level: int,
    mark: voicebox.Mark | None = None,
) -> voicebox.VoiceBoxConfig:
    """What the VoiceBox's process is told, with every chunk length that the two modes make while a reply grows.

    On a GPU also with those that they make beside other replies: there an unknown length costs more than time.
    """
    shapes = {length for policy in policies.values() for length in policy.lengths}
    most = settings.pool.slots if settings.device == "cuda" else 1
    for policy in {policy.eased(others) for policy in policies.values() for others in range(most)}:
        shapes |= _lengths(policy)
    return voicebox.VoiceBoxConfig(
        family=settings.model.family,
        model=dict(facts.voicebox),
        pool=spec,
        max_batch=settings.voicebox.max_batch,
        threads=settings.voicebox.threads,
        shapes=tuple(sorted(shapes)),
        log_level=level,
        place=gpus.place(settings, "voicebox"),
        cores=settings.voicebox.cores or (),
        mark=mark,
        patience=settings.watermark.timeout_s,
    )
