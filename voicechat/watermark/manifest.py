"""Signed metadata in files: C2PA manifests, written and read by the C2PA project's own library.

A manifest is a signature over a whole file, so only whole files have one; a stream of sound can't be signed. Nothing
here reaches for the network: neither for manifests elsewhere nor for revocations, whatever a file asks for.
"""

from __future__ import annotations

import io
import json
import re
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal

import c2pa

from voicechat.contract.provenance import Credential

MIME_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "m4a": "audio/mp4"}
"""Formats that can be signed."""

SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's term for what a trained model made."""

ALGORITHM = "voicechat.watermark.1"
"""Name of the mark in soft bindings."""

_BROKEN = (
    c2pa.C2paError.Assertion,
    c2pa.C2paError.AssertionNotFound,
    c2pa.C2paError.Decoding,
    c2pa.C2paError.Manifest,
    c2pa.C2paError.Signature,
    c2pa.C2paError.Verify,
)
"""Errors of a manifest that is there, but is so broken that it can't be read."""

_PAYLOAD = re.compile("[0-9A-Fa-f]{1,4}")
"""16 bits, as :func:`_claims` writes them."""

_OFFLINE = {"verify": {"remote_manifest_fetch": False, "ocsp_fetch": False}}


class SigningError(ValueError):
    """A certificate, its key or what was to be signed can't be used."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs files as the holder of ``certificates``: PEM, the signer's own first, then those above it.

    The files were made by ``model``; ``payload`` is that of the mark in their sound, None if there is none.
    """

    certificates: bytes
    private_key: bytes = field(repr=False)
    algorithm: str = "es256"
    model: str = "voicechat"
    payload: int | None = None
    formats: frozenset[str] = frozenset(MIME_TYPES)

    @classmethod
    def load(cls, certificate: Path, private_key: Path, algorithm: str, *, model: str, payload: int | None) -> Signer:
        """From PEM files. Raises OSError, or :class:`SigningError` for what can't sign."""
        signer = cls(certificate.read_bytes(), private_key.read_bytes(), algorithm, model, payload)
        try:
            signed = io.BytesIO(signer.sign(_trial(), "wav"))
            if read_stream(signed).state == "invalid":  # it has expired, or is for another use
                raise SigningError("what is signed with it is not valid")
        except SigningError as error:
            raise SigningError(f"{certificate} and {private_key} can't sign: {error}") from None
        return signer

    def sign(self, data: bytes, fmt: str) -> bytes:
        """A file of a format of :data:`MIME_TYPES`, with its manifest: a model made it, and which mark it carries.

        CPU-bound, a few milliseconds. Raises :class:`SigningError`.
        """
        signed = io.BytesIO()
        try:
            with self._native() as signer, c2pa.Builder(json.dumps(_claims(fmt, self.model, self.payload))) as builder:
                builder.sign(signer, MIME_TYPES[fmt], io.BytesIO(data), signed)
        except c2pa.C2paError as error:
            raise SigningError(str(error)) from None
        return signed.getvalue()

    def _native(self) -> c2pa.Signer:
        return c2pa.Signer.from_info(c2pa.C2paSignerInfo(self.algorithm, self.certificates, self.private_key, None))


def _claims(fmt: str, model: str, payload: int | None) -> dict[str, Any]:
    """See the C2PA specification: ``c2pa.actions.v2`` and ``c2pa.soft-binding``."""
    agent = {"name": "voicechat", "version": version("voicechat")}
    when = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    actions: list[dict[str, Any]] = [
        {"action": "c2pa.created", "when": when, "digitalSourceType": SOURCE_TYPE, "softwareAgent": {"name": model}}
    ]
    assertions: list[dict[str, Any]] = []
    if payload is not None:
        actions.append({"action": "c2pa.watermarked.bound", "softwareAgent": agent})
        binding = {"alg": ALGORITHM, "blocks": [{"scope": {}, "value": f"{payload:04x}"}]}
        assertions.append({"label": "c2pa.soft-binding", "data": binding})
    return {
        "title": f"speech.{fmt}",
        "claim_generator_info": [agent],
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": actions}}, *assertions],
    }


def _trial() -> bytes:
    """A moment of silence."""
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", "not compressed"))
        file.writeframes(bytes(4_800))
    return sink.getvalue()


def read_credential(path: Path, trust_anchors: str | None = None) -> Credential:
    """What a file's manifest says, and whether it holds. ``trust_anchors``: PEM of the authorities that are trusted."""
    with path.open("rb") as file:
        return read_stream(file, trust_anchors)


def read_stream(file: BinaryIO, trust_anchors: str | None = None) -> Credential:
    """As :func:`read_credential`, of an open file."""
    settings: dict[str, Any] = dict(_OFFLINE)
    if trust_anchors is not None:
        settings["trust"] = {"trust_anchors": trust_anchors}
    try:
        with c2pa.Context.from_dict(settings) as context, c2pa.Reader(None, file, context=context) as reader:
            return _credential(reader)
    except _BROKEN:
        return Credential(state="invalid")
    except c2pa.C2paError:  # there is none, or the file is of a kind that has none
        return Credential(state="not_present")


def _credential(reader: c2pa.Reader) -> Credential:
    state = {"Trusted": "trusted", "Valid": "valid"}.get(reader.get_validation_state() or "", "invalid")
    return credential_of(reader.get_active_manifest(), state)  # type: ignore[arg-type]


def credential_of(
    manifest: object, state: Literal["trusted", "valid", "invalid", "not_present"] = "invalid"
) -> Credential:
    """What a manifest says. Anybody's: whatever in it is not of the shape that the specification gives is left out."""
    made = next((action for action in _actions(manifest) if action.get("action") == "c2pa.created"), {})
    signature = _object(_object(manifest).get("signature_info"))
    agent = made.get("softwareAgent")  # an object in c2pa.actions.v2, a text in c2pa.actions
    return Credential(
        state=state,
        issuer=_text(signature.get("issuer")),
        model=_text(agent) or _text(_object(agent).get("name")),
        generated_at=_text(signature.get("time")) or _text(made.get("when")),
        generated=made.get("digitalSourceType") == SOURCE_TYPE,
        watermark=_bound(manifest),
    )


def _data(manifest: object, label: str) -> Iterator[dict[str, Any]]:
    """Data of the assertions of a label, its versions and instances (``label.v2``, ``label__1``) included."""
    for assertion in map(_object, _list(_object(manifest).get("assertions"))):
        if (_text(assertion.get("label")) or "").startswith(label):
            yield _object(assertion.get("data"))


def _actions(manifest: object) -> list[dict[str, Any]]:
    return [_object(action) for data in _data(manifest, "c2pa.actions") for action in _list(data.get("actions"))]


def _bound(manifest: object) -> int | None:
    """Payload of our mark by a soft binding."""
    for data in _data(manifest, "c2pa.soft-binding"):
        if data.get("alg") != ALGORITHM:
            continue
        for block in _list(data.get("blocks")):
            value = _text(_object(block).get("value")) or ""
            if _PAYLOAD.fullmatch(value):
                return int(value, 16)
    return None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
