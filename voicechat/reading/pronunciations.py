"""The operator's pronunciations: a YAML file of words and how they are read: other words, or IPA between slashes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

MOST = 10_000
"""Words that a file may hold."""


class PronunciationsError(ValueError):
    """The file can't be used. ``str()`` names it and says why."""


def load(file: Path) -> Mapping[str, str]:
    """``{"kubectl": "cube control", "nginx": "/ˈɛndʒɪn ˈɛks/"}``, words in lower case."""
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PronunciationsError(f"{file}: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or len(tree) > MOST:
        raise PronunciationsError(f"{file}: a mapping of at most {MOST} words to how they are read is wanted")
    read: dict[str, str] = {}
    for word, how in tree.items():
        if not isinstance(word, str) or not word.strip() or any(character.isspace() for character in word.strip()):
            raise PronunciationsError(f"{file}: {word!r} is not one word (put quotes around yes, no and numbers)")
        if not isinstance(how, str) or not how.strip():
            raise PronunciationsError(f"{file}: {word}: how it is read is missing, or not text")
        read[word.strip().lower()] = how.strip()
    return read
