"""Smoothing changes the weights, not the model; and makes its activations easier to round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import write_gguf
from torch import nn
from transformers import AutoModelForCausalLM

from voicechat.assemble import calibrate, smoothing
from voicechat.assemble.catalogue import THINKERS
from voicechat.assemble.gguf_model import convert
from voicechat.assemble.progress import Reporter
from voicechat.assemble.smoothing import Smoothing, balance


@pytest.fixture(params=["llama", "qwen2"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A made-up Thinker in bfloat16."""
    write_gguf(tmp_path / "m.gguf", request.param, output=True)
    (tmp_path / "hf").mkdir()
    convert(tmp_path / "m.gguf", tmp_path / "hf", quantization="none", tied=False, reporter=Reporter(quiet=True))
    return tmp_path / "hf"


def model_of(folder: Path) -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model


def smoothed(model: nn.Module, factors: Smoothing) -> None:
    """Apply factors to a model."""
    model.load_state_dict({name: factors.apply(name, tensor.clone()) for name, tensor in model.state_dict().items()})


def test_a_smoothed_model_computes_the_same(folder: Path) -> None:
    rng = np.random.default_rng(0)
    model = model_of(folder)
    shape = model.config
    layers, width, inner = shape.num_hidden_layers, shape.hidden_size, shape.intermediate_size
    factors = Smoothing(
        *(np.exp(rng.normal(0, 1, (layers, size))).astype(np.float32) for size in (width, width, inner))
    )
    ids = torch.tensor([[1, 5, 9, 200, 3]])
    with torch.no_grad():
        before = model(ids, output_hidden_states=True)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        smoothed(model, factors)
        after = model(ids, output_hidden_states=True)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, weights[name])}
    assert len(changed) == 2 * (2 + 6)
    assert torch.allclose(before.logits, after.logits, atol=1e-3)
    assert torch.allclose(before.hidden_states[-1], after.hidden_states[-1], atol=1e-3)


def test_calibration_finds_the_outliers(folder: Path, tmp_path: Path) -> None:
    model = model_of(folder)
    outlier = 7
    model.model.layers[0].input_layernorm.weight.data[outlier] *= 40
    model.save_pretrained(folder)
    assert calibrate.main(["made-up", str(folder), "--out", str(tmp_path / "out")]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smoothing, "FOLDER", tmp_path / "out")
        factors = smoothing.load("made-up")
    assert factors is not None
    assert factors.attention.shape == (2, 64)
    assert factors.down.shape == (2, 96)
    assert factors.attention[0].argmax() == outlier


def test_balance() -> None:
    ones = np.ones(4, np.float32)
    assert np.allclose(balance(ones, ones, ones), 1)
    loud = np.array([1, 1, 1, 100], np.float32)
    factors = balance(loud, ones, ones)
    assert factors[3] > factors[0]
    assert np.isclose(np.log(factors).mean(), 0, atol=1e-6)
    assert np.isfinite(balance(np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32))).all()


def test_factors_survive_their_file_to_a_32nd_of_an_octave(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.exp(rng.normal(0, 1, (2, 8))).astype(np.float32) for _ in range(3)]
    smoothing.save(tmp_path / "x.npz", Smoothing(*arrays))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smoothing, "FOLDER", tmp_path)
        loaded = smoothing.load("x")
        assert smoothing.load("y") is None
    assert loaded is not None
    for array, again in zip(arrays, (loaded.attention, loaded.mlp, loaded.down), strict=True):
        assert np.abs(np.log2(array) - np.log2(again)).max() <= 1 / 32 + 1e-5


def test_every_thinker_has_its_factors() -> None:
    for name in THINKERS:
        assert smoothing.load(name) is not None
