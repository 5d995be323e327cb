"""API keys: who may call what, how much of it, and until when.

A key is a long random token, so a plain SHA-256 of it is enough: ``keys.yaml`` holds no token, only digests. The file
is the operator's; ``voicechat keys`` edits it, and a running server reads it again on SIGHUP.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

TOKEN_PREFIX = "vc_"
FACES = ("chat", "speech", "transcriptions", "realtime", "provenance", "stats")
"""What a key may be limited to. Lists of models and voices are open to every key."""

_PATHS = {
    "/v1/chat/": "chat",
    "/v1/audio/speech": "speech",
    "/v1/audio/": "transcriptions",
    "/v1/realtime": "realtime",
    "/v1/content_provenance_checks": "provenance",
    "/v1/stats": "stats",
    "/v1/profile": "stats",
    "/metrics": "stats",
}


def face_of(path: str) -> str | None:
    """The face behind a path; None where every key may go."""
    return next((face for prefix, face in _PATHS.items() if path.startswith(prefix)), None)


class KeysError(ValueError):
    """The file of keys, or what is to be done with it, is wrong. ``str()`` is fit for the operator."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Bounds of one key; ``None``: none of its own.

    ``audio_seconds_per_minute`` counts what is heard and what is said.
    """

    requests_per_minute: int | None = None
    audio_seconds_per_minute: float | None = None
    replies: int | None = None
    sessions: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One key. Empty ``faces`` or ``models``: all. ``expires`` is a Unix time."""

    name: str
    digest: str
    faces: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    expires: float | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)

    def opens(self, face: str | None) -> bool:
        """Whether it may call a face."""
        return face is None or not self.faces or face in self.faces


KEY = web.RequestKey("key", Key)
"""The key with which a request came; there is none where none is needed."""


def digest_of(token: str) -> str:
    """SHA-256 of a token, in hex."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


class KeyRing:
    """The keys of the settings (plain tokens that may do everything) and those of a file, if there is one."""

    def __init__(
        self, tokens: Iterable[str] = (), file: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._own = {
            digest_of(token): Key(f"api_keys[{index}]", digest_of(token)) for index, token in enumerate(tokens)
        }
        self._file = file
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self._needed = bool(self._own)
        self.reload()

    def __bool__(self) -> bool:
        """Whether a key is needed. A file of keys that is there but empty opens for nobody; once there was one, its
        absence does not open the server again."""
        self._needed = self._needed or (self._file is not None and self._file.exists())
        return self._needed

    def reload(self) -> None:
        """Read the file again; on :class:`KeysError`, also where it is gone, what was there stays."""
        if self._keys and not self._own and self._file is not None and not self._file.exists():
            raise KeysError(f"{self._file} is gone")
        self._needed = bool(self)
        read = {key.digest: key for key in read_keys(self._file)} if self._file is not None else {}
        self._keys = {**read, **self._own}

    def find(self, token: str) -> Key | None:
        """The key of a token, if it is known and has not expired."""
        return self.current(digest_of(token))

    def current(self, digest: str) -> Key | None:
        """The key of a digest, as it is now; None if it was revoked or has expired."""
        for known, key in self._keys.items():
            if hmac.compare_digest(known, digest):
                return key if key.expires is None or self._clock() < key.expires else None
        return None


# ---- the file


def read_keys(file: Path) -> list[Key]:
    """The keys of a file; none if it is not there. Raises :class:`KeysError`."""
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KeysError(f"{file}: {error}") from None
    if tree is None:
        return []
    if not isinstance(tree, dict) or not isinstance(tree.get("keys", []), list) or set(tree) - {"keys"}:
        raise KeysError(f"{file}: a mapping with the one field 'keys', a list, is wanted")
    keys = [_key(entry, f"{file}: keys[{index}]") for index, entry in enumerate(tree.get("keys") or [])]
    names = [key.name for key in keys]
    if twice := {name for name in names if names.count(name) > 1}:
        raise KeysError(f"{file}: the name {sorted(twice)[0]!r} is there twice")
    return keys


def _key(entry: object, where: str) -> Key:
    if not isinstance(entry, dict):
        raise KeysError(f"{where}: not a mapping")
    if unknown := set(entry) - {"name", "sha256", "created", "expires", "faces", "models", "limits"}:
        raise KeysError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    name, digest = entry.get("name"), entry.get("sha256")
    if not isinstance(name, str) or not name:
        raise KeysError(f"{where}: 'name' is missing")
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise KeysError(f"{where}: 'sha256' is not 64 hexadecimal digits")
    faces = _names(entry.get("faces"), f"{where}: faces")
    if unknown_faces := set(faces) - set(FACES):
        raise KeysError(f"{where}: there is no face {sorted(unknown_faces)[0]!r}; there are {', '.join(FACES)}")
    return Key(
        name,
        digest,
        faces,
        _names(entry.get("models"), f"{where}: models"),
        _time(entry.get("expires"), f"{where}: expires"),
        _limits(entry.get("limits"), f"{where}: limits"),
    )


def _names(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise KeysError(f"{where}: not a list of names")
    return tuple(value)


def _time(value: object, where: str) -> float | None:
    if value is None:
        return None
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise KeysError(f"{where}: {value!r} is not a time like 2027-01-31T00:00:00+00:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _limits(value: object, where: str) -> KeyLimits:
    if value is None:
        return KeyLimits()
    known = KeyLimits.__dataclass_fields__
    if not isinstance(value, dict) or set(value) - set(known):
        raise KeysError(f"{where}: a mapping of {', '.join(known)} is wanted")
    for name, limit in value.items():
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            raise KeysError(f"{where}: {name} is not a number above 0")
    return KeyLimits(**value)


def add_key(file: Path, key: Key) -> None:
    """Put a key into the file. Raises :class:`KeysError` if its name is taken."""
    keys = read_keys(file)
    if any(other.name == key.name for other in keys):
        raise KeysError(f"there is a key {key.name!r} already; revoke it first")
    _write(file, [*keys, key])


def revoke_key(file: Path, name: str) -> None:
    """Take a key out of the file. Raises :class:`KeysError` if there is none of that name."""
    keys = read_keys(file)
    left = [key for key in keys if key.name != name]
    if len(left) == len(keys):
        raise KeysError(f"there is no key {name!r}")
    _write(file, left)


def new_token() -> str:
    """A token that nobody can guess: 192 random bits."""
    return TOKEN_PREFIX + secrets.token_hex(24)


def _write(file: Path, keys: list[Key]) -> None:
    """Replace the file as a whole, readable by its owner alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "# API keys of the server. Edited by `voicechat keys`; read again on SIGHUP.\n" + yaml.safe_dump(
        {"keys": [_entry(key) for key in keys]}, sort_keys=False
    )
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).replace(file)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _entry(key: Key) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": key.name, "sha256": key.digest}
    if key.expires is not None:
        entry["expires"] = datetime.fromtimestamp(key.expires, UTC).isoformat()
    if key.faces:
        entry["faces"] = list(key.faces)
    if key.models:
        entry["models"] = list(key.models)
    limits = {
        name: value for name in KeyLimits.__dataclass_fields__ if (value := getattr(key.limits, name)) is not None
    }
    if limits:
        entry["limits"] = limits
    return entry
