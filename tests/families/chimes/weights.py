"""Random weights, as an assembler makes them: two tiny Llamas, a tokenizer of words, and what goes with the Talker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from chimes.family import BOOKS, CODES, MARKS, VOCABULARY, VOICES, WIDTH, WORDS


def _llama(folder: Path, seed: int, vocabulary: int, architecture: str, silent: Iterable[int] = ()) -> None:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.4,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[list(silent)] = 0.0  # never the likeliest
    model.save_pretrained(folder)
    path = folder / "config.json"
    content: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "architectures": [architecture]}))


def make_thinker(folder: Path, seed: int) -> None:
    """The Thinker, whose class is our own, and its tokenizer."""
    words = range(len(MARKS), len(MARKS) + len(WORDS))
    _llama(folder, seed, VOCABULARY, "ChimesThinker", set(range(VOCABULARY)) - set(words))
    names = [*MARKS, *(f"▁{word}" for word in WORDS)]
    names += [f"▁x{number}" for number in range(len(names), VOCABULARY)]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<s>").save_pretrained(folder)


def make_talker(folder: Path, seed: int) -> None:
    """The Talker, a stock Llama, and beside it what reads rows and makes the further codebooks."""
    _llama(folder, seed + 1, CODES + 2, "LlamaForCausalLM")
    generator = torch.Generator().manual_seed(seed + 2)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    tensors = {
        "rows": noise(WIDTH, 2 * WIDTH),
        "words": noise(CODES, WIDTH),
        "voices": noise(len(VOICES), WIDTH),
        "books": noise(BOOKS - 1, CODES, WIDTH),
        "heads": noise(BOOKS - 1, CODES, WIDTH),
    }
    save_file(tensors, str(folder / "chimes.st"))
