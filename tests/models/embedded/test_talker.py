"""Talker net: factorised head equals the exported table; transformers runs the export; cached steps equal one pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from voicechat.models.embedded.talker import (
    ADVANCES,
    BOS,
    CODES,
    EOS,
    LEFT,
    NONE_SYMBOL,
    RIGHT,
    VOCABULARY,
    Cache,
    Conditioner,
    TalkerNet,
    export_hf,
    load_talker,
    split,
)
from voicechat.models.embedded.untrained import random_weights
from voicechat.models.embedded.weights import TalkerConfig, VoiceBoxConfig, VoiceConfig

SMALL = TalkerConfig(layers=2, width=64, heads=2, feed_forward=96, voices=("heart", "other"), thinkers=(("one", 24),))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    random_weights(folder, seed=3, config=VoiceConfig(talker=SMALL, voicebox=VoiceBoxConfig(width=32, frame_blocks=2)))
    return folder


def inputs(net: TalkerNet, steps: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, BOS, (2, steps), generator=generator)
    tokens[:, 0] = BOS
    return tokens, net.embed(tokens) + 0.1 * torch.randn(2, steps, net.config.width, generator=generator)


def test_split() -> None:
    assert split(0) == (0, 0)
    assert split(BOS - 1) == (CODES - 1, ADVANCES - 1)
    for token in (-1, BOS, EOS):
        with pytest.raises(ValueError, match="no code"):
            split(token)


def test_loss_equals_cross_entropy_over_the_exported_table(weights: Path) -> None:
    net = load_talker(weights)
    tokens, rows = inputs(net)
    tokens[:, -1] = EOS
    states = net(rows)
    targets = torch.cat((tokens[:, 1:], torch.full((2, 1), EOS)), 1).flatten()
    losses, _ = net.loss(states.flatten(0, 1), targets)
    logits = states.flatten(0, 1) @ net.full_tables()[1].T
    assert logits.shape[-1] == VOCABULARY
    torch.testing.assert_close(losses, F.cross_entropy(logits, targets, reduction="none"), rtol=1e-4, atol=1e-4)


def test_steps_with_a_cache_equal_one_pass(weights: Path) -> None:
    net = load_talker(weights)
    _, rows = inputs(net)
    cache = Cache(net.config, 2, 16, torch.device("cpu"), torch.float32)
    stepped = torch.cat([net(rows[:, step : step + 1], cache) for step in range(rows.shape[1])], 1)
    torch.testing.assert_close(stepped, net(rows), rtol=1e-4, atol=1e-5)


def test_transformers_runs_the_export(weights: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export_hf(weights, tmp_path)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    net = load_talker(weights)
    _, rows = inputs(net)
    with torch.inference_mode():
        theirs = model(inputs_embeds=rows).logits
    ours = net(rows) @ net.full_tables()[1].T
    # The export is bf16.
    torch.testing.assert_close(theirs, ours, rtol=0.05, atol=0.02)
    assert model.config.eos_token_id == EOS and model.get_input_embeddings().weight.shape == (VOCABULARY, SMALL.width)


def test_conditioner(weights: Path) -> None:
    net = load_talker(weights)
    conditioner = Conditioner.from_weights(weights, "one")
    symbols = torch.randint(0, NONE_SYMBOL + 1, (5, LEFT + 1 + RIGHT))
    hidden, voice = torch.randn(5, 24), torch.tensor([0, 1, 0, 1, 0])
    there = torch.tensor([True, True, False, False, True])
    row = conditioner(symbols, hidden, there, voice)
    expected = sum(net.conditioner.symbols[k][symbols[:, k]] for k in range(symbols.shape[1]))
    expected = expected + net.conditioner.voice.weight[voice]
    projected = F.layer_norm(hidden, (24,)) @ net.thinkers[0].weight.T  # type: ignore[operator,union-attr]
    torch.testing.assert_close(row, expected + projected * there[:, None], rtol=1e-4, atol=1e-5)
    text_only = Conditioner.from_weights(weights)
    torch.testing.assert_close(text_only(symbols, None, there, voice), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(KeyError):
        Conditioner.from_weights(weights, "unknown")
