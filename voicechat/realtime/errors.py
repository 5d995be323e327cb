"""What a client can do wrong, in the protocol's words. Pure."""

from __future__ import annotations

from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, Overloaded

INVALID = "invalid_request_error"
SERVER = "server_error"


class ClientError(ValueError):
    """A client event that can't be obeyed. ``param`` is the path of the field to blame, if one is."""

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


def cascade_error(error: CascadeError | TimeoutError) -> dict[str, str | None]:
    """The ``error`` object of a response or a transcription that failed."""
    match error:
        case TimeoutError():
            return {"type": SERVER, "code": "timeout", "message": "It took too long."}
        case InvalidRequest():
            return {"type": INVALID, "code": error.code or "invalid_value", "message": str(error)}
        case NotReady():
            return {"type": SERVER, "code": "not_ready", "message": str(error)}
        case Overloaded():
            return {"type": SERVER, "code": "rate_limit_exceeded", "message": str(error)}
    return {"type": SERVER, "code": "stage_failed", "message": str(error)}
