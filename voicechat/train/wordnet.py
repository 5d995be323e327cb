"""Sentences out of WordNet's data files: its examples and its definitions."""

from __future__ import annotations

import io
import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PARTS = ("noun", "verb", "adj", "adv")
_QUOTED = re.compile(r'"([^"]+)"')


class Entry(NamedTuple):
    """One synset: its first word, part of speech, definition and example sentences."""

    word: str
    part: str
    definition: str
    examples: tuple[str, ...]


def read_wordnet(path: Path) -> list[Entry]:
    """Entries from Debian's ``wordnet-base`` package or from a folder with ``data.noun`` and its siblings.

    Raises ``FileNotFoundError`` when the data files are not there.
    """
    texts = _from_package(path) if path.suffix == ".deb" else _from_folder(path)
    return [entry for part, text in texts for entry in _parse(part, text)]


def _from_folder(path: Path) -> Iterator[tuple[str, str]]:
    for part in PARTS:
        yield part, (path / f"data.{part}").read_text(encoding="utf-8")


def _from_package(path: Path) -> Iterator[tuple[str, str]]:
    data = next((body for name, body in _archive(path.read_bytes()) if name.startswith("data.tar")), None)
    if data is None:
        raise FileNotFoundError(f"{path} holds no data.tar")
    if data[:6] == b"\xfd7zXZ\x00":
        data = lzma.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for part in PARTS:
            member = next((name for name in archive.getnames() if name.endswith(f"/data.{part}")), None)
            file = archive.extractfile(member) if member else None
            if file is None:
                raise FileNotFoundError(f"{path} holds no data.{part}")
            yield part, file.read().decode("utf-8")


def _archive(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Members of a Unix ``ar`` archive."""
    position = 8
    while position + 60 <= len(data):
        header = data[position : position + 60]
        size = int(header[48:58])
        yield header[:16].decode().strip(), data[position + 60 : position + 60 + size]
        position += 60 + size + size % 2


def _parse(part: str, text: str) -> Iterator[Entry]:
    for line in text.splitlines():
        if line.startswith("  ") or " | " not in line:
            continue
        fields, gloss = line.split(" | ", 1)
        word = fields.split(" ", 5)[4].replace("_", " ").split("(")[0]
        definition = gloss.split('; "')[0].split(' "')[0].strip(" ;")
        definition = re.sub(r"\([^)]*\)", "", definition).split(";")[0]
        examples = tuple(found.strip() for found in _QUOTED.findall(gloss))
        yield Entry(word, part, " ".join(definition.split()), examples)


def sentence(text: str) -> str:
    """A quoted example as a sentence: capital letter, full stop."""
    text = " ".join(text.split()).strip(" ;,")
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?…" else text + "."


def definition_sentence(entry: Entry) -> str:
    """A definition as a sentence."""
    if entry.part == "noun":
        article = "" if entry.word[0].isupper() else ("An " if entry.word[0] in "aeiou" else "A ")
        word = entry.word if article else entry.word[0].upper() + entry.word[1:]
        return f"{article}{word} is {entry.definition}."
    verb = "To " + entry.word if entry.part == "verb" else entry.word[0].upper() + entry.word[1:]
    return f"{verb} means {'to ' if entry.part == 'verb' else ''}{entry.definition}."
