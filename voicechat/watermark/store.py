"""The deployment's key on disk, and what its payload is."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from pathlib import Path

from voicechat.watermark.keys import KEY_BYTES, Key

log = logging.getLogger(__name__)

PAYLOAD_BITS = 16
FILE_NAME = "watermark.key"


def stored_key(path: Path) -> Key:
    """The key in a file; made there, for its owner's eyes alone, if the file is not there yet.

    Any number of processes may do so at once: one makes the key and all get it, whole. Raises ValueError for a file
    with anything else in it, and OSError.
    """
    if not path.exists():
        _make(path)
    try:
        return Key.parse(path.read_text(encoding="ascii"))
    except ValueError:
        raise ValueError(f"{path} holds no watermark key: {2 * KEY_BYTES} hex digits are expected") from None


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike a rename it never takes the place of another's key
        log.info("a new watermark key was made: %s; without it nobody can read the marks made with it", path)
    except FileExistsError:
        pass  # another process was first
    finally:
        draft.unlink()


def payload_of(identifier: int | str) -> int:
    """The 16 bits that name a deployment: a number as it is, the first bits of a text's SHA-256.

    Raises ValueError for a number that does not fit.
    """
    if isinstance(identifier, int):
        if not 0 <= identifier < 1 << PAYLOAD_BITS:
            raise ValueError(f"a number must be from 0 to {(1 << PAYLOAD_BITS) - 1}")
        return identifier
    return int.from_bytes(hashlib.sha256(identifier.encode()).digest()[: PAYLOAD_BITS // 8], "big")
