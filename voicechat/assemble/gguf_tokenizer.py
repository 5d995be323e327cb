"""The byte-level BPE tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from voicechat.assemble.store import AssembleError

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TURN_ENDS = ("<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of the special tokens; ``ends`` are all those that end a reply."""

    bos: int | None
    eos: int
    pad: int | None
    ends: tuple[int, ...]


def write_tokenizer(reader: gguf.GGUFReader, target: Path) -> SpecialTokens:
    """Write the tokenizer's files into the folder ``target``. Raises AssembleError for kinds not known here."""
    model = _value(reader, "model")
    if model != "gpt2":
        raise AssembleError(f"GGUF tokenizer {model!r} is not known; only byte-level BPE ('gpt2') is")
    tokens: list[str] = _value(reader, "tokens")
    kinds: list[int] = _value(reader, "token_type")
    vocabulary = {token: i for i, token in enumerate(tokens) if kinds[i] != _UNUSED}
    merges = [tuple(merge.split(" ")) for merge in _value(reader, "merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    _set_split(tokenizer, _value(reader, "pre"))
    tokenizer.decoder = decoders.ByteLevel()
    added = {token: kinds[i] for token, i in vocabulary.items() if kinds[i] in {_CONTROL, _USER_DEFINED}}
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in added if added[t] == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added if added[t] == _USER_DEFINED])
    tokenizer.save(str(target / "tokenizer.json"))

    special = SpecialTokens(
        bos=_value(reader, "bos_token_id", None),
        eos=_value(reader, "eos_token_id"),
        pad=_value(reader, "padding_token_id", None),
        ends=tuple(sorted({_value(reader, "eos_token_id"), *(vocabulary[t] for t in _TURN_ENDS if t in vocabulary)})),
    )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _context_length(reader),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "eos_token": tokens[special.eos],
        "pad_token": tokens[special.eos if special.pad is None else special.pad],
    }
    if _value(reader, "add_bos_token", False) and special.bos is not None:
        raise AssembleError("GGUF tokenizers that put a token before every text are not known here")
    template = reader.get_field("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template.contents()
    (target / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return special


def _set_split(tokenizer: Tokenizer, pre: str) -> None:
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    elif pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        raise AssembleError(f"GGUF pre-tokenizer {pre!r} is not known; known are qwen2 and smollm")


_REQUIRED = object()


def _value(reader: gguf.GGUFReader, key: str, default: Any = _REQUIRED) -> Any:
    entry = reader.get_field(f"tokenizer.ggml.{key}")
    if entry is not None:
        return entry.contents()
    if default is _REQUIRED:
        raise AssembleError(f"the GGUF file has no tokenizer.ggml.{key}")
    return default


def _context_length(reader: gguf.GGUFReader) -> int:
    architecture = reader.get_field("general.architecture").contents()
    return int(reader.get_field(f"{architecture}.context_length").contents())
