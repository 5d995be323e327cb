"""The deployment's key on disk, and what its payload is."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import time
from pathlib import Path

from voicechat.watermark.keys import KEY_BYTES, Key

log = logging.getLogger(__name__)

PAYLOAD_BITS = 16
FILE_NAME = "watermark.key"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What link(2) says on file systems without hard links, such as FAT, exFAT and some network shares."""
_EMPTY_S = 0.5


def stored_key(path: Path) -> Key:
    """The key in a file; made there, for its owner's eyes alone, if the file is not there yet.

    Any number of processes may do so at once: one makes the key and all get it, whole. Raises ValueError for a file
    with anything else in it, and OSError.
    """
    if not path.exists():
        _make(path)
    try:
        return Key.parse(_text(path))
    except ValueError:
        raise ValueError(f"{path} holds no watermark key: {2 * KEY_BYTES} hex digits are expected") from None


def _text(path: Path) -> str:
    """A file's text. Without hard links, another process may have made the file and write into it the next moment."""
    until = time.monotonic() + _EMPTY_S
    while not (text := path.read_text(encoding="ascii")) and time.monotonic() < until:
        time.sleep(0.02)
    return text


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    text = secrets.token_hex(KEY_BYTES) + "\n"
    _write_new(draft, text)
    try:
        try:
            os.link(draft, path)  # unlike a rename it never takes the place of another's key
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _write_new(path, text)
        log.info("a new watermark key was made: %s; without it nobody can read the marks made with it", path)
    except FileExistsError:
        pass  # another process was first
    finally:
        draft.unlink()


def _write_new(path: Path, text: str) -> None:
    """A file that was not there, for its owner's eyes alone; if it can't be written, none."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()  # in one piece
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise


def payload_of(identifier: int | str) -> int:
    """The 16 bits that name a deployment: a number as it is, the first bits of a text's SHA-256.

    Raises ValueError for a number that does not fit.
    """
    if isinstance(identifier, int):
        if not 0 <= identifier < 1 << PAYLOAD_BITS:
            raise ValueError(f"a number must be from 0 to {(1 << PAYLOAD_BITS) - 1}")
        return identifier
    return int.from_bytes(hashlib.sha256(identifier.encode()).digest()[: PAYLOAD_BITS // 8], "big")
