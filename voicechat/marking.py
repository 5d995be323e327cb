"""From settings to keys: which mark this deployment's sound carries, and which are looked for."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from voicechat.config import Settings
from voicechat.contract.cascade import Watermark
from voicechat.watermark.keys import Key
from voicechat.watermark.store import FILE_NAME, payload_of, stored_key

log = logging.getLogger(__name__)


def own_key(settings: Settings, *, make: bool) -> Key:
    """The deployment's key. ``make`` it if it is kept in a file that is not there yet, else that is a ValueError.

    Raises ValueError and OSError for a file that holds no key, or can't be read or made.
    """
    mine = settings.watermark
    if mine.key is not None:
        return Key.parse(mine.key)
    path = key_file(settings)
    if not make and not path.exists():
        raise ValueError(f"there is no watermark key yet: {path} is made when the server first starts")
    return stored_key(path)


def key_file(settings: Settings) -> Path:
    """Where the key is kept, if it is not in the settings."""
    given = settings.watermark.key_file
    return given.expanduser() if given is not None else settings.data_dir / FILE_NAME


def known_keys(settings: Settings, *, make: bool) -> list[Key]:
    """All keys by which marks are looked for, the deployment's own first. Raises as :func:`own_key`."""
    return list(dict.fromkeys([own_key(settings, make=make), *_further(settings)]))


def keys_to_check(settings: Settings) -> list[Key]:
    """As :func:`known_keys` of a server that starts: it makes its key.

    If marking is off, a key that is not there and can't be made, as in a read-only data folder, is no reason not to
    start: then it is only said in the log, and missing. Raises as :func:`own_key`.
    """
    try:
        return known_keys(settings, make=True)
    except OSError as error:
        if settings.watermark.enabled or os.path.lexists(key_file(settings)):
            raise
        log.warning("there is no watermark key, and none can be made: %s", error)
        return list(dict.fromkeys(_further(settings)))


def _further(settings: Settings) -> list[Key]:
    return [Key.parse(text) for text in settings.watermark.known_keys]


def own_mark(settings: Settings, *, make: bool = False) -> Watermark:
    """What the deployment's sound carries, if marking is on. Raises as :func:`own_key`."""
    return Watermark(payload_of(settings.watermark.payload), own_key(settings, make=make).id)
