"""Why a response could not be made. Every message is fit for the caller."""

from __future__ import annotations


class CascadeError(Exception):
    """A response could not be made. ``str()`` is fit for the caller."""


class NotReady(CascadeError):
    """The stages are still warming up, or one is down."""


class Overloaded(CascadeError):
    """No slot became free within the bound; the caller may try again later, in ``retry_after`` seconds if known."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    """The caller asked for more than is allowed."""


class StageFailed(CascadeError):
    """A stage died, or answered with a fault, while the response was inside it."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class InvalidRequest(CascadeError):
    """The request can't be served as it is. ``param`` names the field in the cascade's words: messages, voice, …"""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
