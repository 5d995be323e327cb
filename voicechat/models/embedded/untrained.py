"""Untrained weights: for tests, and for building on."""

from __future__ import annotations

from pathlib import Path

import torch

from voicechat.models.embedded.talker import TalkerNet
from voicechat.models.embedded.voicebox import VoiceBoxNet
from voicechat.models.embedded.weights import VoiceConfig, save_voice


def random_weights(directory: Path | str, seed: int = 0, config: VoiceConfig | None = None) -> None:
    """Write untrained weights of the given shape (the final shape by default): for tests and for building on."""
    config = config or VoiceConfig()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        talker = TalkerNet(config.talker)
        voicebox = VoiceBoxNet(config.voicebox)
    save_voice(directory, config, talker.state_dict(), voicebox.state_dict())
