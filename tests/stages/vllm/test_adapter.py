"""The hooks into both of vLLM's model runners, over stand-ins with the members that the hooks use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from voicechat.stages.vllm.adapter import InputHook, UnknownVllm, check_version, is_v2

WIDTH, TOKENS = 4, 16


class ModelState:
    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        return {"positions": input_batch.num_tokens}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        return {"seen": num_reqs}


class Second:
    """The second runner: asks its model state, then calls the model with what it got."""

    def __init__(self) -> None:
        self.model_state = ModelState()
        self.input_buffers = SimpleNamespace(input_ids=torch.arange(TOKENS, dtype=torch.int32))
        self.max_num_tokens, self.dtype, self.device = TOKENS, torch.float32, torch.device("cpu")
        self.model_config = SimpleNamespace(get_inputs_embeds_size=lambda: WIDTH)
        table = torch.randn(TOKENS, WIDTH)
        self.model = SimpleNamespace(embed_input_ids=lambda ids: table[ids.long()])

    def inputs(self, ids: list[str], padded: int) -> dict[str, Any]:
        batch = SimpleNamespace(req_ids=ids, num_tokens=len(ids), num_tokens_after_padding=padded)
        return {"input_ids": "raw", "inputs_embeds": None, **self.model_state.prepare_inputs(batch, None)}


class First:
    """The first runner: calls the model through one method."""

    def __init__(self, embeds: bool = True) -> None:
        self.input_batch = SimpleNamespace(req_ids=["a", "b"])
        self.input_ids = SimpleNamespace(gpu=torch.arange(TOKENS))
        self.inputs_embeds = SimpleNamespace(gpu=torch.zeros(TOKENS, WIDTH))
        self.embeds = embeds

    def _model_forward(self, input_ids: Any, positions: Any, tensors: Any, inputs_embeds: Any, **kwargs: Any) -> Any:
        return input_ids, positions, inputs_embeds, kwargs

    def forward(self) -> Any:
        embeddings = self.inputs_embeds.gpu[:4] if self.embeds else None
        return self._model_forward(None, "p", None, embeddings, extra=1)


def test_the_second_runner_gets_embeddings_in_one_buffer() -> None:
    """Real steps are conditioned, dummy ones are not; both, and captured graphs, read the same memory."""
    runner = Second()
    real = [False]
    calls: list[list[str]] = []

    def condition(ids: Any, tokens: torch.Tensor, embeddings: torch.Tensor, embed: Any) -> None:
        calls.append(list(ids))
        embeddings[:3] = embed(tokens[:3]) + 1

    hook = InputHook(runner, lambda: real[0], condition)
    assert is_v2(runner)
    dummy = runner.inputs(["x"], 8)
    assert calls == []
    real[0] = True
    made = runner.inputs(["a", "b", "c"], 4)
    assert calls == [["a", "b", "c"]]
    captured = runner.model_state.prepare_dummy_inputs(2, 4)
    assert made["input_ids"] is captured["input_ids"] is dummy["input_ids"] is None
    assert made["positions"] == 3
    assert captured["seen"] == 2
    assert made["inputs_embeds"].shape == (4, WIDTH)
    assert torch.equal(made["inputs_embeds"][:3], runner.model.embed_input_ids(torch.arange(3)) + 1)
    pointers = {inputs["inputs_embeds"].data_ptr() for inputs in (dummy, made, captured)}
    assert pointers == {hook.embeddings.data_ptr()}


def test_the_first_runner_is_conditioned_before_its_model() -> None:
    runner = First()
    real = [False]

    def condition(ids: Any, tokens: torch.Tensor, embeddings: torch.Tensor, embed: Any) -> None:
        assert (ids, embed) == (["a", "b"], None)
        assert tokens is runner.input_ids.gpu
        embeddings[0] = 7

    InputHook(runner, lambda: real[0], condition)
    assert float(runner.forward()[2].sum()) == 0
    real[0] = True
    ids, positions, embeddings, extra = runner.forward()
    assert (ids, positions, extra) == (None, "p", {"extra": 1})
    assert embeddings[0].tolist() == [7.0] * WIDTH


def test_a_first_runner_without_embeddings_is_a_clear_fault() -> None:
    runner = First(embeds=False)
    InputHook(runner, lambda: True, lambda *_: None)
    with pytest.raises(UnknownVllm, match="prompt embeddings"):
        runner.forward()


def test_a_runner_that_nobody_knows_is_a_clear_fault() -> None:
    pytest.importorskip("vllm")
    with pytest.raises(UnknownVllm, match="neither of the known hooks"):
        InputHook(SimpleNamespace(), lambda: True, lambda *_: None)


@pytest.mark.parametrize("version", ["0.26.0", "0.29.1", "0.32.0", "0.32.0+cpu", "0.30.0rc2"])
def test_versions_that_were_read(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.25.9", "0.33.0", "1.0.0", "dev"])
def test_versions_that_were_not(version: str) -> None:
    with pytest.raises(UnknownVllm, match=r"0\.26 to 0\.32"):
        check_version(version)
