"""From settings to the stages' configurations."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cascade.test_chunks import policies
from voicechat.app import (
    brain_options,
    chunk_policy,
    ears_spec,
    marking,
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
from voicechat.contract.family import Facts, RowLayout
from voicechat.contract.pool import PoolSpec
from voicechat.contract.sound import EARS_RATE, PCM_RATE
from voicechat.watermark.store import stored_key

AWAY = ("brain.url=http://127.0.0.1:9/v1", "brain.model=m", "brain.context_tokens=500")
FACTS = Facts(
    voices=("ann", "ben"),
    context_tokens=8192,
    system_prompt="You are a voice.",
    rows=RowLayout(576),
    step_samples=480,
    step_bytes=3,
    look_ahead=4,
    text_columns=5,
    extra_bytes=6,
    sampling={"temperature": 0.4, "top_k": 33, "top_p": 0.8},
    thinker={"folder": "t"},
    talker={"folder": "s"},
    voicebox={"folder": "v"},
)


def facts(**changes: Any) -> Facts:
    return dataclasses.replace(FACTS, **changes)


@pytest.fixture
def paths(tmp_path: Path) -> AssembledPaths:
    return AssembledPaths(folders={}, ears=tmp_path / "e", detectors=tmp_path, facts=FACTS)


def settings(*overrides: str) -> Settings:
    return load_settings("embedded-tiny", overrides=overrides, environ={})


def test_the_pool_is_as_large_as_set() -> None:
    spec = pool_spec(
        settings("pool.slots=3", "pool.max_rows=99", "pool.ring_seconds=40.5", "server.max_audio_seconds=7"), FACTS
    )
    assert (spec.slots, spec.bays, spec.hidden_size, spec.max_rows) == (3, 3, 576, 99)
    assert spec.pcm_samples == 40.5 * PCM_RATE
    assert spec.bay_samples == 7 * EARS_RATE


def test_a_ring_holds_the_longest_chunk_at_the_slowest_tempo() -> None:
    spec = pool_spec(settings("pool.ring_seconds=1", "voicebox.quality_first.max_chunk=50"), FACTS)
    assert spec.pcm_samples >= 75 * FACTS.step_samples * 4 + 480


def test_sound_is_marked_unless_it_is_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        mark = marking(settings(f"data_dir={tmp_path}", "watermark.payload=4711"))
    assert mark is not None and mark.payload == 4711
    key = stored_key(tmp_path / "watermark.key")
    assert mark.key == key.secret and "1267" in caplog.text and key.id in caplog.text
    assert key.secret.hex() not in caplog.text and key.secret.hex() not in repr(mark)
    caplog.clear()
    assert marking(settings(f"data_dir={tmp_path}", "watermark.enabled=false")) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "unmarked" in caplog.text


def test_a_key_of_the_settings_goes_before_a_file(tmp_path: Path) -> None:
    mark = marking(settings(f"data_dir={tmp_path}", f"watermark.key={'ab' * 32}"))
    assert mark is not None and mark.key == bytes.fromhex("ab" * 32)
    assert list(tmp_path.iterdir()) == []


def test_the_lanes_are_as_wide_as_the_family_says() -> None:
    spec = pool_spec(settings("talker.max_model_len=500"), FACTS)
    assert (spec.text_columns, spec.extra_bytes, spec.max_steps) == (5, 6, 500)


def test_the_model_advises_and_the_settings_decide() -> None:
    spec = pool_spec(settings(), FACTS)
    advised = talker_config(settings(), FACTS, spec, 20)
    assert advised.sampling == {"temperature": 0.4, "top_k": 33, "top_p": 0.8}
    assert (advised.family, advised.model) == ("embedded", {"folder": "s"})
    chosen = settings("talker.temperature=0", "talker.top_k=0", "talker.kv_cache_mb=20")
    decided = talker_config(chosen, FACTS, spec, 20)
    assert decided.sampling == {"temperature": 0.0, "top_k": 0, "top_p": 0.8}
    assert decided.kv_cache_bytes == 20 << 20


def test_the_context_is_no_longer_than_the_thinker_was_made_for() -> None:
    assert within_context(settings(), FACTS) == settings()
    assert within_context(settings(), facts(context_tokens=None)) == settings()
    assert within_context(settings(), facts(context_tokens=1024)).thinker.max_model_len == 1024
    assert within_context(settings("thinker.max_model_len=512"), FACTS).thinker.max_model_len == 512


def test_a_row_for_each_token_of_the_prompt_needs_room() -> None:
    every = facts(rows=RowLayout(8, "prompt"))
    with pytest.raises(ValueError, match=r"pool.max_rows \(1024\) is less than thinker.max_model_len \(4096\)"):
        within_context(settings(), every)
    assert within_context(settings("thinker.max_model_len=1024"), every).thinker.max_model_len == 1024


def test_the_thinker_is_told_how_rows_begin(paths: AssembledPaths) -> None:
    spec = pool_spec(settings(), FACTS)
    told = thinker_config(settings(), paths, spec, 20)
    assert (told.rows_begin, told.system_prompt, told.model) == ("predicting", "You are a voice.", {"folder": "t"})
    consuming = dataclasses.replace(paths, facts=facts(rows=RowLayout(576, "consuming")))
    assert thinker_config(settings(), consuming, spec, 20).rows_begin == "consuming"


def test_what_faces_are_told() -> None:
    told = model_info(settings(), FACTS)
    assert (told.name, told.voices, told.default_voice) == ("embedded-tiny", ("ann", "ben"), "ann")
    assert (told.sees, told.hears) == (False, False)
    told = model_info(settings(), facts(sees=True, hears=True))
    assert (told.sees, told.hears) == (True, True)
    told = model_info(settings(*AWAY), facts(sees=True, hears=True))
    assert (told.sees, told.hears) == (False, False), "the brain elsewhere is asked with text"


def test_the_look_ahead_is_the_familys() -> None:
    chunks = settings().voicebox.latency_first
    assert chunk_policy(chunks, 7).right == 7


@given(policies(), st.integers(1, 300))
def test_every_chunk_in_the_middle_of_a_reply_is_warmed_up(policy: ChunkPolicy, steps: int) -> None:
    """Whatever length a chunk has before the reply's end, the VoiceBox has met it before the first caller does."""
    spec = PoolSpec(
        name="none", slots=1, hidden_size=1, max_rows=1, max_text_rows=1, pcm_samples=1, bays=1, bay_samples=1
    )
    shapes = voicebox_config(Settings(), FACTS, spec, {True: policy}, 20).shapes
    buffer = ChunkBuffer(policy, 2)
    for step in range(steps):
        buffer.push(step.to_bytes(2, "big"))
        while (chunk := buffer.pop()) is not None:
            assert len(chunk.steps) // 2 in shapes


def test_a_brain_elsewhere_needs_no_thinker() -> None:
    """The ears live by themselves, and the Talker reads text alone."""
    away, told = settings(*AWAY, "brain.api_key=k"), facts(rows=None, context_tokens=None)
    assert within_context(away, told) is away
    spec = pool_spec(away, told)
    assert (spec.hidden_size, spec.max_rows) == (1, 1)
    assert model_info(away, told).context_tokens == 500
    paths = AssembledPaths(folders={}, ears=Path("e"), detectors=Path("d"), facts=told)
    assert list(thinking(away, paths, spec, 20)) == ["thinker", "ears"]
    asked = brain_options(away, told.system_prompt)
    assert (asked.url, asked.model, asked.api_key) == ("http://127.0.0.1:9/v1", "m", "k")
    assert asked.system_prompt == "You are a voice."
    assert (asked.connect_timeout, asked.first_token_timeout, asked.idle_timeout) == (5.0, 60.0, 30.0)


def test_the_ears_are_the_thinkers_on_the_cpu_and_by_themselves_on_a_gpu(paths: AssembledPaths) -> None:
    spec = pool_spec(settings(), FACTS)
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
