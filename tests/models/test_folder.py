"""What a model folder says of itself, with configurations as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BloomConfig, GemmaConfig, GPT2Config, GPTNeoXConfig, LlamaConfig, MptConfig, OPTConfig

from voicechat.assemble import AssembleError, assemble
from voicechat.config import load_settings
from voicechat.contract.family import FamilyError
from voicechat.models.folder import context_length, has_chat_template, hidden_size


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (LlamaConfig(hidden_size=64, max_position_embeddings=99), 99),
        (GemmaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=99), 99),
        (GPTNeoXConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=99), 99),
        (GPT2Config(n_embd=64, n_head=4, n_positions=99), 99),
        (OPTConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=99), 99),
        (MptConfig(d_model=64, max_seq_len=99), 99),
        (BloomConfig(hidden_size=64), None),
    ],
)
def test_width_and_context_of_many_architectures(config: object, context: int | None, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert hidden_size(tmp_path) == 64
    assert context_length(tmp_path) == context


def test_models_with_eyes_keep_the_text_model_in_a_section(tmp_path: Path) -> None:
    section = {"hidden_size": 64, "max_position_embeddings": 99}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": section}))
    assert (hidden_size(tmp_path), context_length(tmp_path)) == (64, 99)


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", None])
def test_configurations_that_say_nothing(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(FamilyError, match=r"config\.json"):
        hidden_size(tmp_path)


def test_where_a_chat_template_may_be(tmp_path: Path) -> None:
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert has_chat_template(tmp_path)


def test_a_folder_without_a_template_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    own = (f"model.thinker.dir={tmp_path}", f"data_dir={tmp_path / 'data'}")
    with pytest.raises(AssembleError, match=r"no chat template.*chat_template\.jinja"):
        assemble(load_settings("embedded-tiny", overrides=own, environ={}))
