"""Reading a JSON request field by field; what is wrong becomes a 400 that names the field, in OpenAI's words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from voicechat.faces.errors import ApiError
from voicechat.realtime.fields import kind_of


def bad_field(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 for the field at path ``param``."""
    return ApiError(400, message, param=param, code=code)


def wrong_type(param: str, expected: str, value: object) -> ApiError:
    """A 400 for a value of a type that the field can't have."""
    message = f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead."
    return bad_field(param, message, "invalid_type")


def unsupported_value(param: str, value: str) -> ApiError:
    """A 400 for a value that OpenAI's API knows, but that no model here can honour."""
    message = f"Unsupported value: '{param}' does not support {value} with this model."
    return bad_field(param, message, "unsupported_value")


def quoted(values: Collection[str]) -> str:
    """Values as messages list them."""
    return ", ".join(f"'{value}'" for value in values)


class Fields:
    """One JSON object of a request at ``path`` (empty for the body). A field that is ``null`` counts as not given."""

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value) if path else ApiError(400, "The body must be a JSON object.")
        self._values: dict[str, Any] = value
        self._path = path

    def path(self, name: str) -> str:
        """Path of field ``name``."""
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        """Value of field ``name`` as it is; ``None`` if it is not given."""
        return self._values.get(name)

    def names(self) -> tuple[str, ...]:
        """Names of all fields, those that are ``null`` too."""
        return tuple(self._values)

    def only(self, names: Collection[str]) -> None:
        """Refuse fields other than ``names``."""
        for name in self._values:
            if name not in names:
                param = self.path(name)
                raise bad_field(param, f"Unknown parameter: '{param}'.", "unknown_parameter")

    def require(self, name: str) -> Any:
        """Value of a field that must be given."""
        if self.get(name) is None:
            param = self.path(name)
            raise bad_field(param, f"Missing required parameter: '{param}'.", "missing_required_parameter")
        return self.get(name)

    def need_string(self, name: str, max_length: int | None = None) -> str:
        """A string that must be given."""
        self.require(name)
        return self.string(name, max_length) or ""

    def need_choice(self, name: str, choices: Sequence[str]) -> str:
        """One of ``choices``, which must be given."""
        self.require(name)
        return self.choice(name, choices) or ""

    def need_object(self, name: str) -> Fields:
        """An object that must be given."""
        return Fields(self.require(name), self.path(name))

    def string(self, name: str, max_length: int | None = None) -> str | None:
        """A string, if given."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise wrong_type(self.path(name), "a string", value)
        if max_length is not None and len(value) > max_length:
            param = self.path(name)
            message = (
                f"Invalid '{param}': string too long. Expected a string with maximum length {max_length}, "
                f"but got a string with length {len(value)} instead."
            )
            raise bad_field(param, message, "string_above_max_length")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of ``choices``, if given."""
        value = self.string(name)
        if value is not None and value not in choices:
            param = self.path(name)
            raise bad_field(param, f"Invalid value: '{value[:64]}'. Supported values are: {quoted(choices)}.")
        return value

    def boolean(self, name: str) -> bool | None:
        """A boolean, if given."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.path(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer from ``low`` to ``high``, if given."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.path(name), "an integer", value)
        self._check_range(name, value, low, high, "integer")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number from ``low`` to ``high``, if given."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.path(name), "a decimal", value)
        self._check_range(name, value, low, high, "decimal")
        return float(value)

    def object(self, name: str) -> Fields | None:
        """An object, if given."""
        value = self.get(name)
        return None if value is None else Fields(value, self.path(name))

    def array(self, name: str) -> list[Any] | None:
        """An array, if given."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.path(name), "an array", value)
        return value

    def _check_range(self, name: str, value: float, low: float, high: float, what: str) -> None:
        param = self.path(name)
        if value < low:
            message = (
                f"Invalid '{param}': {what} below minimum value. Expected a value >= {low}, but got {value} instead."
            )
            raise bad_field(param, message, f"{what}_below_min_value")
        if value > high:
            message = (
                f"Invalid '{param}': {what} above maximum value. Expected a value <= {high}, but got {value} instead."
            )
            raise bad_field(param, message, f"{what}_above_max_value")
