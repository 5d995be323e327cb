"""Reading a JSON object field by field; what is wrong raises a :class:`ClientError` that names the field. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from voicechat.realtime.errors import ClientError


def kind_of(value: object) -> str:
    """How messages call the type of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


def wrong_type(param: str, expected: str, value: object) -> ClientError:
    """The error for a value of a type that the field can't have."""
    message = f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead."
    return ClientError(message, code="invalid_type", param=param)


def missing(param: str) -> ClientError:
    """The error for a field that must be given."""
    message = f"Missing required parameter: '{param}'."
    return ClientError(message, code="missing_required_parameter", param=param)


def unsupported(param: str, what: str) -> ClientError:
    """The error for something that the protocol knows, but that can't be had here; ``what`` is a sentence."""
    return ClientError(f"Unsupported value for '{param}': {what}", code="unsupported_value", param=param)


class Fields:
    """One JSON object at ``path``. The readers give ``None`` for a field that is absent or null; see :meth:`has`."""

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong_type(path or "event", "an object", value)
        self._values: dict[str, Any] = value
        self._path = path

    def path(self, name: str) -> str:
        """Path of field ``name``."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """True if the field is given, be it null."""
        return name in self._values

    def get(self, name: str) -> Any:
        """Value of the field as it is."""
        return self._values.get(name)

    def only(self, names: Collection[str]) -> None:
        """Refuse fields other than ``names``."""
        for name in self._values:
            if name not in names:
                param = self.path(name)
                raise ClientError(f"Unknown parameter: '{param[:200]}'.", code="unknown_parameter", param=param[:200])

    def need(self, name: str) -> Any:
        """Value of a field that must be given."""
        value = self.get(name)
        if value is None:
            raise missing(self.path(name))
        return value

    def string(self, name: str, max_length: int | None = None) -> str | None:
        """A string."""
        value = self.get(name)
        if value is None:
            return None
        param = self.path(name)
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        if max_length is not None and len(value) > max_length:
            message = f"Invalid '{param}': it has {len(value)} characters, but at most {max_length} are allowed."
            raise ClientError(message, code="string_above_max_length", param=param)
        return value

    def need_string(self, name: str, max_length: int | None = None) -> str:
        """A string that must be given."""
        self.need(name)
        return self.string(name, max_length) or ""

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of ``choices``."""
        value = self.string(name)
        if value is not None and value not in choices:
            param = self.path(name)
            allowed = ", ".join(f"'{choice}'" for choice in choices)
            raise ClientError(f"Invalid value: '{value[:64]}'. Supported values are: {allowed}.", param=param)
        return value

    def boolean(self, name: str) -> bool | None:
        """A boolean."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.path(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer from ``low`` to ``high``."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.path(name), "an integer", value)
        self._check_range(name, value, low, high)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number from ``low`` to ``high``."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.path(name), "a decimal", value)
        self._check_range(name, value, low, high)
        return float(value)

    def object(self, name: str) -> Fields | None:
        """An object."""
        value = self.get(name)
        return None if value is None else Fields(value, self.path(name))

    def array(self, name: str) -> list[Any] | None:
        """An array."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.path(name), "an array", value)
        return value

    def _check_range(self, name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:  # false for NaN too
            param = self.path(name)
            raise ClientError(f"Invalid '{param}': it must be between {low} and {high}, but is {value}.", param=param)
