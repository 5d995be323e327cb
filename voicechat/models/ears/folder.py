"""A folder with a Whisper model in CTranslate2's form: is it one, and what can it hear?"""

from __future__ import annotations

import json
from pathlib import Path

from voicechat.contract.hearing import EarsFacts

FILES = ("model.bin", "config.json", "tokenizer.json")
"""What must be there; ``preprocessor_config.json`` says how many bands the features have, if not 80."""
_ENGLISH_END = 50_256
"""Number of the end of text in English vocabularies; those of all languages have one token more."""


def ears_facts(folder: str | Path) -> EarsFacts:
    """What the ears in a folder can. Raises ValueError, with a text for the operator, if there are none."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"ears.model: there is no folder {path}")
    if missing := [name for name in FILES if not (path / name).is_file()]:
        raise ValueError(
            f"ears.model: {path} is no Whisper model in CTranslate2's form: {', '.join(missing)} is missing"
        )
    try:
        tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
        special = {token["content"]: int(token["id"]) for token in tokenizer["added_tokens"]}
        end = special["<|endoftext|>"]
        first, last = special["<|startoftranscript|>"] + 1, special["<|translate|>"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"ears.model: {path / 'tokenizer.json'} is not Whisper's: {error!r}") from None
    if end == _ENGLISH_END:
        return EarsFacts(path.name, ("en",), words=True)
    languages = tuple(name[2:-2] for name, number in special.items() if first <= number < last)
    return EarsFacts(path.name, languages, translates=True, words=True)
