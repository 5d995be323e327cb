"""From settings to the stages' configurations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cascade.test_chunks import policies
from voicechat.app import (
    brain_options,
    ears_spec,
    model_info,
    pool_spec,
    talker_config,
    thinker_config,
    thinking,
    voicebox_config,
    within_context,
)
from voicechat.assemble import AssembledPaths
from voicechat.cascade.chunks import ChunkBuffer, ChunkPolicy
from voicechat.config import Settings, load_settings
from voicechat.contract.pool import PoolSpec
from voicechat.contract.sound import EARS_RATE, PCM_RATE

VOICE = {
    "talker": {"voices": ["ann", "ben"], "thinkers": [["smollm2-135m", 576]]},
    "sampling": {"temperature": 0.4, "top_k": 33},
}


@pytest.fixture
def paths(tmp_path: Path) -> AssembledPaths:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 576}))
    return AssembledPaths(
        thinker=tmp_path, talker=tmp_path / "t", ears=tmp_path / "e", weights=tmp_path / "w", detectors=tmp_path
    )


def settings(*overrides: str) -> Settings:
    return load_settings("embedded-tiny", overrides=overrides, environ={})


def test_the_pool_is_as_large_as_set(paths: AssembledPaths) -> None:
    spec = pool_spec(
        settings("pool.slots=3", "pool.max_rows=99", "pool.ring_seconds=2.5", "server.max_audio_seconds=7"), paths
    )
    assert (spec.slots, spec.bays, spec.hidden_size, spec.max_rows) == (3, 3, 576, 99)
    assert spec.pcm_samples == 2.5 * PCM_RATE
    assert spec.bay_samples == 7 * EARS_RATE


def test_the_weights_advise_and_the_settings_decide(paths: AssembledPaths) -> None:
    spec = pool_spec(settings(), paths)
    advised = talker_config(settings(), paths, spec, VOICE, 20)
    assert (advised.temperature, advised.top_k, advised.thinker) == (0.4, 33, "smollm2-135m")
    chosen = settings("talker.temperature=0", "talker.top_k=0", "model.talker.dtype=float32", "talker.kv_cache_mb=20")
    decided = talker_config(chosen, paths, spec, VOICE, 20)
    assert (decided.temperature, decided.top_k, decided.dtype) == (0.0, 0, "float32")
    assert decided.kv_cache_bytes == 20 << 20


def test_a_thinker_unknown_to_the_weights_is_read_by_its_text_alone(paths: AssembledPaths) -> None:
    spec = pool_spec(settings(), paths)
    assert talker_config(settings("model.thinker.source=other"), paths, spec, VOICE, 20).thinker is None
    own = settings(f"model.thinker.dir={paths.thinker}")
    assert talker_config(own, paths, spec, VOICE, 20).thinker is None


def test_a_projection_stands_for_what_the_weights_know(paths: AssembledPaths, tmp_path: Path) -> None:
    """Given by its file or by its folder."""
    spec = pool_spec(settings(), paths)
    for place in (tmp_path, tmp_path / "projection.safetensors"):
        told = talker_config(settings(f"model.talker.projection={place}"), paths, spec, VOICE, 20)
        assert (told.thinker, told.projection) == (None, str(tmp_path / "projection.safetensors"))
    assert talker_config(settings(), paths, spec, VOICE, 20).projection is None


def test_the_context_is_no_longer_than_the_thinker_was_made_for(paths: AssembledPaths) -> None:
    assert within_context(settings(), paths) == settings()
    (paths.thinker / "config.json").write_text('{"n_embd": 8, "n_positions": 1024}')
    fitted = within_context(settings(), paths)
    assert (fitted.thinker.max_model_len, pool_spec(fitted, paths).hidden_size) == (1024, 8)
    assert within_context(settings("thinker.max_model_len=512"), paths).thinker.max_model_len == 512


def test_the_system_prompt(paths: AssembledPaths) -> None:
    spec = pool_spec(settings(), paths)
    assert "voice" in thinker_config(settings(), paths, spec, 20).system_prompt
    own = settings("model.thinker.system_prompt=Be brief.")
    assert thinker_config(own, paths, spec, 20).system_prompt == "Be brief."


def test_what_faces_are_told() -> None:
    told = model_info(settings(), ["ann", "ben"])
    assert (told.name, told.voices, told.default_voice, told.sees) == ("embedded-tiny", ("ann", "ben"), "ann", False)


@given(policies(), st.integers(1, 300))
def test_every_chunk_in_the_middle_of_a_reply_is_warmed_up(policy: ChunkPolicy, steps: int) -> None:
    """Whatever length a chunk has before the reply's end, the VoiceBox has met it before the first caller does."""
    spec = PoolSpec(
        name="none", slots=1, hidden_size=1, max_rows=1, max_symbols=1, pcm_samples=1, bays=1, bay_samples=1
    )
    paths = AssembledPaths(*[Path("nowhere")] * 5)
    shapes = voicebox_config(Settings(), paths, spec, {True: policy}, 20).shapes
    buffer = ChunkBuffer(policy)
    for step in range(steps):
        buffer.push((step,), bytes(9))
        while (chunk := buffer.pop()) is not None:
            assert len(chunk.codes) in shapes


AWAY = ("brain.url=http://127.0.0.1:9/v1", "brain.model=m", "brain.context_tokens=500")


def test_a_brain_elsewhere_needs_no_thinker(paths: AssembledPaths) -> None:
    """Nothing of its folder is read; the ears live by themselves, and the Talker reads text alone."""
    (paths.thinker / "config.json").unlink()
    away = settings(*AWAY, "brain.api_key=k", "model.thinker.system_prompt=Sing.")
    assert within_context(away, paths) is away
    spec = pool_spec(away, paths)
    assert (spec.hidden_size, spec.max_rows) == (1, 1)
    assert model_info(away, ["ann"]).context_tokens == 500
    assert talker_config(away, paths, spec, VOICE, 20).thinker is None
    assert list(thinking(away, paths, spec, 20)) == ["thinker", "ears"]
    told = brain_options(away)
    assert (told.url, told.model, told.api_key, told.system_prompt) == ("http://127.0.0.1:9/v1", "m", "k", "Sing.")
    assert (told.connect_timeout, told.first_token_timeout, told.idle_timeout) == (5.0, 60.0, 30.0)


def test_the_ears_are_the_thinkers_on_the_cpu_and_by_themselves_on_a_gpu(paths: AssembledPaths) -> None:
    spec = pool_spec(settings(), paths)
    here = settings("ears.workers=3")
    assert list(thinking(here, paths, spec, 20)) == ["thinker"]
    told = thinker_config(here, paths, spec, 20).ears
    assert told is not None
    assert (told.dir, told.workers, told.place.on_gpu) == (str(paths.ears), 3, False)
    there = settings("device=cuda", "ears.gpu=1", "ears.max_batch=8", "ears.gpu_memory_mb=999")
    assert list(thinking(there, paths, spec, 20)) == ["thinker", "ears"]
    assert thinker_config(there, paths, spec, 20).ears is None
    told = ears_spec(there, paths)
    assert (told.place.gpus, told.place.memory_mb, told.max_batch) == ([1], 999, 8)
    assert list(thinking(settings("device=cuda", "ears.device=cpu"), paths, spec, 20)) == ["thinker"]
