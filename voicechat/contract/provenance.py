"""What a file says of where it comes from: marks in its sound, and signed metadata. Pure data."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, Protocol

import msgspec


class MarkSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a sound that carries a mark, in seconds.

    ``payload`` is the 16 bits that name who made it, None if the part is too short or too worn to read them; ``key_id``
    is the public name of the key; ``p_value`` bounds the chance of as clear a mark where there is none; ``speed`` is
    1.02 for sound that plays 2 % faster than it was made.
    """

    start_s: float
    end_s: float
    payload: int | None
    key_id: str
    p_value: float
    score: float
    speed: float = 1.0


class MarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a whole sound. ``scores``: how clear the mark is, second by second."""

    detected: bool
    duration_s: float
    p_value: float
    spans: tuple[MarkSpan, ...]
    scores: tuple[float, ...]


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The signed metadata (C2PA) of a file.

    ``state``: ``trusted`` if an authority that is trusted here stands for the signer, ``valid`` if the signature is
    right, ``invalid`` if it is not, or the file was changed since. ``generated``: whether it says that a model made the
    sound. ``watermark``: payload of the mark that it says is in it.
    """

    state: Literal["trusted", "valid", "invalid", "not_present"]
    issuer: str | None = None
    model: str | None = None
    generated_at: str | None = None
    generated: bool = False
    watermark: int | None = None


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Both."""

    mark: MarkReport
    credential: Credential


class FileSigner(Protocol):
    """Signs whole files."""

    @property
    def formats(self) -> Container[str]:
        """Those that it can sign."""

    def sign(self, data: bytes, fmt: str) -> bytes:
        """A file of one of :attr:`formats` with its signed metadata. CPU-bound."""


class CannotCheck(Exception):
    """A file in which nothing can be looked for. ``str()`` is fit for whoever sent it.

    ``code``: ``unreadable``, ``no_audio``, ``silent``, ``too_short`` or ``too_large``.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message
