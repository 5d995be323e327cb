"""Qwen3-Omni's code predictor against transformers', and what its draws depend on."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig as ReferenceConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration as Reference,
)

from voicechat.models.qwen3_omni.predictor import CodePredictor, PredictorConfig, parameter_names

SHAPE = {
    "vocab_size": 64,
    "num_code_groups": 5,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
}


@pytest.fixture(scope="module")
def nets() -> tuple[Reference, CodePredictor]:
    torch.manual_seed(2)
    reference = Reference(ReferenceConfig(**SHAPE)).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    ours = CodePredictor(PredictorConfig.of(reference.config.to_dict()))
    ours.load(reference.state_dict())
    return reference, ours.eval()


def frames(ours: CodePredictor, past: torch.Tensor, first: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(len(past), dtype=torch.long)
    given = {"seeds": zeros, "frames": zeros, "draw": zeros.bool(), **more}
    with torch.inference_mode():
        return ours(past, first, given["seeds"], given["frames"], given["draw"])


def test_the_likeliest_codes_are_the_references(nets: tuple[Reference, CodePredictor]) -> None:
    reference, ours = nets
    past, first = torch.randn(2, 20, 32)
    with torch.inference_mode():
        expected = reference.generate(inputs_embeds=torch.stack((past, first), 1), max_new_tokens=4, do_sample=False)
    made = frames(ours, past, first)
    assert made.tolist() == expected.tolist()
    assert len({tuple(line) for line in made.tolist()}) > 10  # the codes tell the inputs apart
    with torch.inference_mode():
        tables = [table(made[:, group]) for group, table in enumerate(reference.get_input_embeddings())]
        torch.testing.assert_close(ours.embed(made), sum(tables))


def test_draws_are_those_of_seed_and_frame(nets: tuple[Reference, CodePredictor]) -> None:
    _, ours = nets
    past, first = torch.randn(2, 6, 32)
    given = {
        "seeds": torch.tensor([7, 7, 8, 7, 9, 7]),
        "frames": torch.tensor([0, 1, 0, 0, 5, 9]),
        "draw": torch.ones(6).bool(),
    }
    together = frames(ours, past, first, **given)
    for line in range(6):
        mine = {name: part[line : line + 1] for name, part in given.items()}
        alone = frames(ours, past[line : line + 1], first[line : line + 1], **mine)
        assert alone.tolist() == together[line : line + 1].tolist()
    same = past[:1].expand(64, -1), first[:1].expand(64, -1)
    many = frames(ours, *same, seeds=torch.arange(64), frames=torch.zeros(64).long(), draw=torch.ones(64).bool())
    assert len({tuple(line) for line in many.tolist()}) > 8


def test_draws_follow_the_chances(nets: tuple[Reference, CodePredictor]) -> None:
    """The first further code, 20,000 times: top-k and top-p as transformers' processors cut them, chances as said."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    reference, ours = nets
    past, first = torch.randn(2, 1, 32)
    with torch.inference_mode():
        logits = reference(inputs_embeds=torch.stack((past, first), 1)).logits[:, -1] * 1.0
    ids = torch.zeros(1, 1, dtype=torch.long)
    chances = TopPLogitsWarper(0.8)(ids, TopKLogitsWarper(50)(ids, logits)).softmax(-1)[0]
    many = 20_000
    made = frames(
        ours, past.expand(many, -1), first.expand(many, -1), seeds=torch.arange(many), draw=torch.ones(many).bool()
    )
    counted = torch.bincount(made[:, 0], minlength=64) / many
    assert (counted[chances == 0] == 0).all()
    assert (counted - chances).abs().max() < 4 * (0.25 / many) ** 0.5  # four standard deviations of a share


def test_the_published_shape() -> None:
    reference = ReferenceConfig()
    with torch.device("meta"):
        theirs = {name: tuple(parameter.shape) for name, parameter in Reference(reference).named_parameters()}
    assert parameter_names(PredictorConfig.of(reference.to_dict())) == theirs
