"""``POST /v1/content_provenance_checks``: whether a file's sound was made here, in OpenAI's shape.

The answer's ``results`` hold OpenAI's entry of type ``c2pa`` (signed metadata) and ours, ``voicechat_watermark``, in
the place of their mark's. A file goes to disk as it comes and is looked into elsewhere: the event loop only hands it
on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import BodyPartReader, web

from voicechat.contract.cascade import Cascade
from voicechat.contract.provenance import CannotCheck, Credential, MarkReport, MarkSpan, Provenance
from voicechat.faces.errors import SERVER, ApiError, json_response
from voicechat.faces.operation import (
    JSON,
    TEXT,
    Operation,
    Reply,
    Schema,
    array,
    documented,
    nullable,
    one_of,
    struct,
    whole,
)
from voicechat.faces.upload import ROOM, in_time, too_large, unless_gone, write_part

PATH = "/v1/content_provenance_checks"
MARK_TYPE = "voicechat_watermark"


class FileChecker(Protocol):
    """Looks into files."""

    def check(self, path: Path) -> Coroutine[Any, Any, Provenance]:
        """Raises :class:`CannotCheck`; may be cancelled."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """``max_checks``: files inside at once, those that come or wait for their turn included; ``upload_s``: seconds in
    which one must have come, for it takes one of these places."""

    max_bytes: int
    max_checks: int
    upload_s: float = 120.0
    disconnect_poll_s: float = 0.2


_NUMBER: Schema = {"type": "number"}
_OUTCOME = one_of(("detected", "not_detected"))
_CREDENTIAL = whole(
    {
        "type": {"const": "c2pa"},
        "outcome": _OUTCOME,
        "validation_state": nullable(TEXT),
        "issuer": nullable(TEXT),
        "model": nullable(TEXT),
        "generated_at": {},
        "watermark_payload": nullable({"type": "integer"}),
    }
)
_MARK = struct(
    {
        "type": {"const": MARK_TYPE},
        "outcome": _OUTCOME,
        "payload": nullable({"type": "integer"}),
        "key_id": nullable(TEXT),
        "made_here": {"type": "boolean"},
        "p_value": nullable(_NUMBER),
        "duration": _NUMBER,
        "spans": array(struct({"start": _NUMBER, "end": _NUMBER}, ("start", "end"), more=True)),
        "scores": array(_NUMBER),
    },
    ("type", "outcome", "payload", "key_id", "made_here", "p_value", "duration", "spans"),
)
_OPERATION = Operation(
    "Whether a file's sound was made here",
    {
        200: Reply(
            "What was found: signed metadata and our own mark.",
            {
                JSON: whole(
                    {
                        "object": {"const": "content_provenance_check"},
                        "created_at": {"type": "integer"},
                        "results": array({"anyOf": [_CREDENTIAL, _MARK]}, minItems=2, maxItems=2),
                    }
                )
            },
        )
    },
    errors=(400, 408, 413, 415),
    body={"multipart/form-data": struct({"file": {"type": "string", "format": "binary"}}, ("file",))},
)


class ProvenanceFace:
    """The handler of the route."""

    def __init__(self, cascade: Cascade, checker: FileChecker | None, limits: CheckLimits) -> None:
        self._cascade = cascade
        self._checker = checker
        self._limits = limits
        self._inside = 0

    def setup(self, app: web.Application) -> None:
        """Add the route."""
        app.router.add_post(PATH, self.post)

    @documented(_OPERATION)
    async def post(self, request: web.Request) -> web.Response:
        """Answer one request."""
        if self._checker is None:
            message = "Files can't be checked here: this server has no watermark key to look by."
            raise ApiError(503, message, kind=SERVER, code="no_watermark_key")
        if request.content_type != "multipart/form-data":
            message = "Send the file as multipart/form-data, in the field 'file'."
            raise ApiError(415, message, code="unsupported_content_type")
        if (request.content_length or 0) > self._limits.max_bytes + ROOM:
            raise too_large(self._limits.max_bytes)
        if self._inside >= self._limits.max_checks:
            message = "As many files are being checked as may be. Try again in a moment."
            raise ApiError(503, message, kind=SERVER, code="overloaded", headers={"Retry-After": "5"})
        self._inside += 1
        try:
            with tempfile.TemporaryDirectory(prefix="voicechat-check-") as folder:
                path = Path(folder) / "file"
                await in_time(self._receive(request, path), self._limits.upload_s)
                found = await self._check(self._checker, request, path)
        finally:
            self._inside -= 1
        return json_response(self._answer(found))

    async def _receive(self, request: web.Request, path: Path) -> None:
        """The field ``file``, written to ``path``."""
        found = False
        try:
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader) or part.name != "file":
                    name = part.name if isinstance(part, BodyPartReader) else None
                    raise ApiError(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
                if found:
                    raise ApiError(400, "One file is checked at a time.", param="file", code="invalid_value")
                found = True
                await write_part(part, path, self._limits.max_bytes)
        except ValueError as error:
            raise ApiError(400, f"The multipart body is malformed: {error}", code="invalid_body") from None
        if not found:
            message = "Missing required parameter: 'file'."
            raise ApiError(400, message, param="file", code="missing_required_parameter")

    async def _check(self, checker: FileChecker, request: web.Request, path: Path) -> Provenance:
        """Gives up when the caller does: a long file would else keep others waiting for nobody."""
        try:
            return await unless_gone(request, checker.check(path), self._limits.disconnect_poll_s)
        except CannotCheck as reason:
            status = 413 if reason.code == "too_large" else 400
            raise ApiError(status, str(reason), param="file", code=reason.code) from None

    def _answer(self, found: Provenance) -> dict[str, Any]:
        return {
            "object": "content_provenance_check",
            "created_at": int(time.time()),
            "results": [credential_object(found.credential), self._mark_object(found.mark)],
        }

    def _mark_object(self, mark: MarkReport) -> dict[str, Any]:
        best = main_span(mark.spans)
        mine = self._cascade.model.watermark
        return {
            "type": MARK_TYPE,
            "outcome": "detected" if mark.detected else "not_detected",
            "payload": None if best is None else best.payload,
            "key_id": None if best is None else best.key_id,
            "made_here": best is not None
            and mine is not None
            and (best.payload, best.key_id) == (mine.payload, mine.key_id),
            "p_value": mark.p_value,
            "duration": mark.duration_s,
            "spans": [span_object(span) for span in mark.spans],
            "scores": list(mark.scores),
        }


def main_span(spans: Sequence[MarkSpan]) -> MarkSpan | None:
    """The longest whose payload was read, else the longest."""
    return max(spans, key=lambda span: (span.payload is not None, span.end_s - span.start_s), default=None)


def span_object(span: MarkSpan) -> dict[str, Any]:
    """A marked part; ``start`` and ``end`` in seconds."""
    fields = msgspec.structs.asdict(span)
    return {"start": fields.pop("start_s"), "end": fields.pop("end_s"), **fields}


def credential_object(credential: Credential) -> dict[str, Any]:
    """OpenAI's entry: detected is what holds and says that a model made the sound."""
    holds = credential.state in ("trusted", "valid") and credential.generated
    return {
        "type": "c2pa",
        "outcome": "detected" if holds else "not_detected",
        "validation_state": credential.state,
        "issuer": credential.issuer,
        "model": credential.model,
        "generated_at": credential.generated_at,
        "watermark_payload": credential.watermark,
    }


def setup(app: web.Application, cascade: Cascade, checker: FileChecker | None, limits: CheckLimits) -> None:
    """Add the route. Without a ``checker`` it says that files can't be checked."""
    ProvenanceFace(cascade, checker, limits).setup(app)
