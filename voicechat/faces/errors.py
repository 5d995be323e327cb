"""Errors as OpenAI's API shows them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, Overloaded, StageFailed

log = logging.getLogger(__name__)

INVALID = "invalid_request_error"
SERVER = "server_error"
RETRY_AFTER_S = 1

CHAT_PARAMS: Mapping[str, str | None] = {"voice": "audio.voice", "sampling": None}
"""Fields of chat completions by the cascade's words for them, where they differ."""


class ApiError(Exception):
    """A reply that is an error. ``param`` is the path of the request's field that is to blame, if one is."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object of the reply."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> web.Response:
        """The whole reply."""
        return json_response(self.body(), status=self.status, headers=self.headers)


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON reply; ``body`` may also be JSON bytes that are ready to send."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return web.Response(body=data, status=status, headers=headers, content_type="application/json", charset="utf-8")


def internal_error() -> ApiError:
    """What a caller learns of a bug: nothing but that it is not the caller's."""
    return ApiError(500, "The server had an error while processing your request.", kind=SERVER)


def too_many(message: str, retry_after: float | None = None, *, what: str = "requests") -> ApiError:
    """A limit of the caller or of the server is met; ``retry_after`` in seconds, if known."""
    retry = {"Retry-After": str(max(RETRY_AFTER_S, math.ceil(retry_after or 0)))}
    return ApiError(429, message, kind=what, code="rate_limit_exceeded", headers=retry)


def from_cascade(error: CascadeError, params: Mapping[str, str | None] = CHAT_PARAMS) -> ApiError:
    """How a failed response is told to the caller. ``params`` are the names of fields in the caller's request."""
    message = str(error)
    match error:
        case InvalidRequest():
            param = error.param
            if param is not None:
                param = params.get(param, param.removeprefix("sampling."))
            return ApiError(400, message, param=param, code=error.code or "invalid_value")
        case Overloaded():
            return too_many(message, error.retry_after)
        case NotReady():
            retry = {"Retry-After": str(RETRY_AFTER_S)}
            return ApiError(503, message, kind=SERVER, code="not_ready", headers=retry)
        case StageFailed():
            return ApiError(500, message, kind=SERVER, code="stage_failed")
        case _:
            return ApiError(500, message, kind=SERVER)


def from_http(error: web.HTTPException, request: web.Request) -> ApiError:
    """How aiohttp's own refusals (no route, wrong method, too large …) are told."""
    keep = {name: value for name, value in error.headers.items() if name.lower() in ("allow", "retry-after")}
    if error.status == 404:
        return ApiError(404, f"Unknown request URL: {request.method} {request.path}", code="unknown_url")
    if error.status == 405:
        message = f"Not allowed to {request.method} on {request.path}"
        return ApiError(405, message, code="method_not_supported", headers=keep)
    if error.status == 413:
        return ApiError(413, "The request body is too large.", code="request_too_large")
    kind = SERVER if error.status >= 500 else INVALID
    return ApiError(error.status, error.reason or error.text or "The request failed.", kind=kind, headers=keep)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every failure into one reply in OpenAI's shape, and log those that are our own fault."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except CascadeError as error:
        return from_cascade(error).response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return from_http(error, request).response()
    except HttpProcessingError as error:  # found in the body: a chunk, or a header of one of its parts
        reason = error.message.strip().splitlines()
        message = f"The body is malformed: {reason[0] if reason else 'it is no HTTP'}"
        return ApiError(400, message, code="invalid_body").response()
    except Exception:
        # The outermost frame of a request: whatever a bug raises must become this caller's error and nobody else's.
        log.exception("%s %s failed", request.method, request.path)
        return internal_error().response()
