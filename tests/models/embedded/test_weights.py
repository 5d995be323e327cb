"""The weights folder: size, reading back, reproducible random ones, the packaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from voicechat.models.embedded.talker import load_talker
from voicechat.models.embedded.untrained import random_weights
from voicechat.models.embedded.voicebox import load_voicebox
from voicechat.models.embedded.weights import (
    CARD_FILE,
    TALKER_FILE,
    VOICE_FILE,
    VOICEBOX_FILE,
    WEIGHTS_DIR,
    TalkerConfig,
    VoiceBoxConfig,
    VoiceConfig,
    load_tensors,
    load_voice_config,
)

SMALL = VoiceConfig(
    talker=TalkerConfig(layers=1, width=32, heads=2, feed_forward=32), voicebox=VoiceBoxConfig(width=16, frame_blocks=1)
)


def test_random_weights_are_reproducible_and_leave_the_generator_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    for name in ("a", "b"):
        random_weights(tmp_path / name, seed=5, config=SMALL)
    assert torch.equal(torch.random.get_rng_state(), before)
    for file in (TALKER_FILE, VOICEBOX_FILE, VOICE_FILE):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert load_voice_config(tmp_path / "a") == SMALL
    assert load_talker(tmp_path / "a").config == SMALL.talker


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / VOICE_FILE).write_text(json.dumps({"format": 99}), encoding="utf-8")
    with pytest.raises(ValueError, match="format"):
        load_voice_config(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_voice_config(tmp_path / "nowhere")


def test_packaged_weights_have_the_default_shape_and_three_voices() -> None:
    config = load_voice_config()
    assert config.talker == TalkerConfig(voices=("heart", "joe", "alto"))
    assert config.voicebox == VoiceBoxConfig(voices=3)
    size = sum((WEIGHTS_DIR / name).stat().st_size for name in (TALKER_FILE, VOICEBOX_FILE))
    assert size <= 64 * 2**20
    assert "Apache-2.0" in (WEIGHTS_DIR / CARD_FILE).read_text(encoding="utf-8")
    assert all(torch.isfinite(tensor).all() for tensor in load_tensors(WEIGHTS_DIR / TALKER_FILE).values())
    voicebox, codes = load_voicebox(), torch.arange(0, 4000, 400)[None].expand(3, -1)
    symbols = torch.arange(9)[None, None].expand(3, 10, -1)
    sounds = voicebox.decode(codes, symbols, torch.arange(3))
    assert sounds.shape == (3, 10 * 960)
    torch.testing.assert_close(
        sounds[:1], voicebox.decode(codes[:1], symbols[:1]), msg="the first voice is the default"
    )
    assert all((sounds[a] - sounds[b]).abs().max() > 0.01 for a, b in ((0, 1), (0, 2), (1, 2)))
