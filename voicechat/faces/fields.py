"""Reading a JSON request field by field; what is wrong becomes a 400 that names the field, in OpenAI's words."""

from __future__ import annotations

from voicechat.faces.errors import ApiError
from voicechat.realtime import fields
from voicechat.realtime.fields import quoted

__all__ = ["Fields", "bad_field", "quoted", "unsupported_value", "wrong_type"]


def bad_field(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 for the field at path ``param``."""
    return ApiError(400, message, param=param, code=code)


class Fields(fields.Fields):
    """One JSON object of a request at ``path`` (empty for the body). A field that is ``null`` counts as not given."""

    error = staticmethod(bad_field)
    require = fields.Fields.need

    def __init__(self, value: object, path: str = "") -> None:
        if not path and not isinstance(value, dict):
            raise ApiError(400, "The body must be a JSON object.")
        super().__init__(value, path)


wrong_type = Fields.wrong_type


def unsupported_value(param: str, value: str) -> ApiError:
    """A 400 for a value that OpenAI's API knows, but that no model here can honour."""
    message = f"Unsupported value: '{param}' does not support {value} with this model."
    return bad_field(param, message, "unsupported_value")
