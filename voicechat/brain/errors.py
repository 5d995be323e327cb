"""What can go wrong with an endpoint, in words that are fit for the caller. Pure."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from voicechat.contract.messages import Failed

Kind = Literal["failed", "invalid", "unreachable", "unready", "overloaded"]
MAX_WORDS = 500
"""Most characters of an endpoint's own words that are passed on."""


class BrainError(Exception):
    """A reply could not be had. ``lasting``: asking again will not help, a setting is wrong.

    ``detail`` is for the log, not for the caller.
    """

    def __init__(
        self,
        message: str,
        kind: Kind = "failed",
        *,
        lasting: bool = False,
        retry_after: float | None = None,
        param: str | None = None,
        code: str | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.detail = detail
        self.kind = kind
        self.lasting = lasting
        self.retry_after = retry_after
        self.param = param
        self.code = code

    def failed(self, number: int) -> Failed:
        """As the coordinator is told of it."""
        return Failed(
            number,
            str(self),
            invalid=self.kind == "invalid",
            param=self.param,
            code=self.code,
            unreachable=self.kind in ("unreachable", "unready"),
            overloaded=self.kind == "overloaded",
            retry_after=self.retry_after,
        )


def refusal(status: int, headers: Mapping[str, str], body: bytes, model: str) -> BrainError:
    """What an answer of a status other than 200 means."""
    made = _refusal(status, headers, body, model)
    made.detail = f"HTTP {status}: {body[:MAX_WORDS].decode(errors='replace')}"
    return made


def _refusal(status: int, headers: Mapping[str, str], body: bytes, model: str) -> BrainError:
    words, param, code = _words(body)
    said = f": {words}" if words else ""
    match status:
        case 400 | 413 | 422:
            return BrainError(f"The brain refuses this request{said}", "invalid", param=param, code=code)
        case 401 | 403:
            return BrainError(f"The brain refuses this server's API key (HTTP {status}).", lasting=True)
        case 404:
            return BrainError(f"The brain has no model '{model}' to chat with (HTTP 404){said}", lasting=True)
        case 429:
            message = "The brain is asked too often (HTTP 429). Try again in a moment."
            return BrainError(message, "overloaded", retry_after=retry_after(headers.get("Retry-After")))
        case 503:
            return BrainError("The brain is not ready to answer (HTTP 503). Try again in a moment.", "unready")
        case _ if status < 400:
            return BrainError(f"The brain sends its callers elsewhere (HTTP {status}).", lasting=True)
        case _:
            return BrainError(f"The brain failed (HTTP {status}). Please try again.")


def reported(error: object, model: str) -> BrainError:
    """An error object in the middle of a stream, or in a reply of status 200."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    made = refusal(status, {}, msgspec.json.encode({"error": error}), model)
    made.detail = f"it reports {error!r}"[:MAX_WORDS]
    if status >= 500 and (words := _words(msgspec.json.encode({"error": error}))[0]):
        return BrainError(f"The brain failed: {words}", detail=made.detail)
    return made


def retry_after(value: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header, which gives seconds or a date; None if it is not there or neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _words(body: bytes) -> tuple[str, str | None, str | None]:
    """The message, field and code of an error's body, in any of the shapes that endpoints use."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return "", None, None
    if isinstance(value, dict):
        value = value.get("error", value.get("detail", value))
    if isinstance(value, str):
        return value[:MAX_WORDS], None, None
    if not isinstance(value, dict):
        return "", None, None
    message, param, code = value.get("message"), value.get("param"), value.get("code")
    return (
        message[:MAX_WORDS] if isinstance(message, str) else "",
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else None,
    )
