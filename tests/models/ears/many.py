"""A multilingual Whisper with weights of no meaning, made small: what matters is its form."""

from __future__ import annotations

import json
from pathlib import Path


def make(folder: Path, english: Path) -> Path:
    """In Hugging Face's form, with the vocabulary of ``english``, a folder with an English model, moved up by one."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    tokenizer = json.loads((english / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = {text: number for text, number in tokenizer["model"]["vocab"].items() if number < 50_256}
    tokenizer["model"]["vocab"] = vocabulary | {"<|unused|>": 50_256}
    added = sorted(tokenizer["added_tokens"], key=lambda token: int(token["id"]))
    moved = [token | {"id": token["id"] + 1} for token in added]
    times = [moved[-1] | {"id": 50_364 + step, "content": f"<|{step / 50:.2f}|>"} for step in range(1501)]
    tokenizer["added_tokens"] = moved + times
    tokenizer["post_processor"] = None
    top = 51_865
    torch.manual_seed(3)
    size = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    config = WhisperConfig(
        vocab_size=top,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        bos_token_id=50_257,
        eos_token_id=50_257,
        pad_token_id=50_257,
        decoder_start_token_id=50_258,
        suppress_tokens=[],
        begin_suppress_tokens=[220, 50_257],
        **size,
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config.update(
        suppress_tokens=[],
        begin_suppress_tokens=[220, 50_257],
        is_multilingual=True,
        lang_to_id={
            token["content"]: token["id"] for token in tokenizer["added_tokens"] if 50_259 <= token["id"] < 50_358
        },
        alignment_heads=[[0, 0]],
        no_timestamps_token_id=50_363,
    )
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder
