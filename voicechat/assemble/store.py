"""Files and folders that appear whole or not at all: atomic renames, checksums, stamps and a lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from voicechat.assemble.progress import Reporter
from voicechat.contract.artifacts import sha256_file

PARTIAL = ".partial"
STAMP = "assembled.json"
SMALL = 1 << 20
"""Bytes of a file whose checksum is compared each time."""


class AssembleError(RuntimeError):
    """A model can't be assembled. ``str()`` says why and what to do."""


@contextmanager
def locked(folder: Path, reporter: Reporter) -> Iterator[None]:
    """Hold the folder's lock, waiting for another process that holds it. The lock dies with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reporter.say(f"another process is assembling in {folder}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A partial file beside ``path`` to write to; renamed to ``path`` when the block ends well, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty partial folder beside ``path``; renamed to ``path`` when the block ends well, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL)
    remove(partial)
    partial.mkdir()
    try:
        yield partial
        for file in partial.iterdir():
            _sync(file)
        remove(path)
        partial.replace(path)
    finally:
        remove(partial)


def write_stamp(folder: Path, recipe: dict[str, Any]) -> None:
    """Write what the folder was made from, with the size and checksum of each of its files."""
    files = {
        file.name: {"size": file.stat().st_size, "sha256": sha256_file(file)}
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name != STAMP
    }
    (folder / STAMP).write_text(json.dumps({"recipe": recipe, "files": files}, indent=1) + "\n", encoding="utf-8")


def is_whole(folder: Path, recipe: dict[str, Any], *, verify: bool = False) -> bool:
    """Whether the folder was made by this recipe and has no :func:`damage`."""
    try:
        return bool(_stamp(folder)["recipe"] == recipe) and damage(folder, verify=verify) is None
    except (OSError, ValueError, KeyError, TypeError):
        return False


def damage(folder: Path, *, verify: bool = False) -> str | None:
    """What is not as it was when the folder was made, in words; None if nothing is, or it was never whole.

    Compares all sizes, and the checksums of files up to :data:`SMALL`, of all if ``verify``: a start need not read
    gigabytes, and a large file that is not all there has another size.
    """
    try:
        files = dict(_stamp(folder)["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {STAMP} can't be read ({error})" if (folder / STAMP).exists() else None
    for name, entry in files.items():
        file = folder / name
        try:
            size = file.stat().st_size
            if size != entry["size"]:
                return f"{name} has {size} bytes instead of {entry['size']}"
            if (verify or size <= SMALL) and sha256_file(file) != entry["sha256"]:
                return f"{name} is not what it was (its SHA-256 differs)"
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, KeyError, TypeError) as error:
            return f"{name} can't be read ({error})"
    return None


def _stamp(folder: Path) -> Any:
    return json.loads((folder / STAMP).read_text(encoding="utf-8"))


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy where the file system knows no hard links."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def remove_partials(folder: Path) -> None:
    """Remove what an interrupted assembler left. Call it under the lock."""
    for path in folder.glob(f"*/*{PARTIAL}"):
        remove(path)


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
