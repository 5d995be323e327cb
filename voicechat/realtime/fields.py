"""Reading a JSON object field by field; what is wrong is told in OpenAI's words, and names the field. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Self

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


def quoted(values: Collection[str]) -> str:
    """Values as messages list them."""
    return ", ".join(f"'{value}'" for value in values)


class Fields:
    """One JSON object at ``path``. The readers give ``None`` for a field that is absent or null; see :meth:`has`.

    Where it is not an event of the Realtime API that is read, a subclass says by :meth:`error` what is raised.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise self.wrong_type(path or "event", "an object", value)
        self._values: dict[str, Any] = value
        self._path = path

    # ---- what is raised

    @staticmethod
    def error(param: str, message: str, code: str = "invalid_value") -> Exception:
        """The error for what is wrong with the field at path ``param``."""
        return ClientError(message, code=code, param=param)

    @classmethod
    def wrong_type(cls, param: str, expected: str, value: object) -> Exception:
        """The error for a value of a type that the field can't have."""
        message = f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead."
        return cls.error(param, message, "invalid_type")

    @classmethod
    def missing(cls, param: str) -> Exception:
        """The error for a field that must be given."""
        return cls.error(param, f"Missing required parameter: '{param}'.", "missing_required_parameter")

    # ---- all fields

    def path(self, name: str) -> str:
        """Path of field ``name``."""
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """True if the field is given, be it null."""
        return name in self._values

    def names(self) -> tuple[str, ...]:
        """Names of all fields that are given, be they null."""
        return tuple(self._values)

    def only(self, names: Collection[str]) -> None:
        """Refuse fields other than ``names``."""
        for name in self._values:
            if name not in names:
                param = self.path(name)[:200]
                raise self.error(param, f"Unknown parameter: '{param}'.", "unknown_parameter")

    # ---- one field

    def get(self, name: str) -> Any:
        """Value of the field as it is."""
        return self._values.get(name)

    def need(self, name: str) -> Any:
        """Value of a field that must be given."""
        value = self.get(name)
        if value is None:
            raise self.missing(self.path(name))
        return value

    def string(self, name: str, max_length: int | None = None) -> str | None:
        """A string."""
        value = self.get(name)
        if value is None:
            return None
        param = self.path(name)
        if not isinstance(value, str):
            raise self.wrong_type(param, "a string", value)
        if max_length is not None and len(value) > max_length:
            message = (
                f"Invalid '{param}': string too long. Expected a string with maximum length {max_length}, "
                f"but got a string with length {len(value)} instead."
            )
            raise self.error(param, message, "string_above_max_length")
        return value

    def need_string(self, name: str, max_length: int | None = None) -> str:
        """A string that must be given."""
        self.need(name)
        return self.string(name, max_length) or ""

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of ``choices``."""
        value = self.string(name)
        if value is not None and value not in choices:
            message = f"Invalid value: '{value[:64]}'. Supported values are: {quoted(choices)}."
            raise self.error(self.path(name), message)
        return value

    def need_choice(self, name: str, choices: Sequence[str]) -> str:
        """One of ``choices``, which must be given."""
        self.need(name)
        return self.choice(name, choices) or ""

    def boolean(self, name: str) -> bool | None:
        """A boolean."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong_type(self.path(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer from ``low`` to ``high``, be it written as 2.0."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(self.path(name), "an integer", value)
        self._check_range(name, value, low, high, "integer")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number from ``low`` to ``high``."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong_type(self.path(name), "a decimal", value)
        self._check_range(name, value, low, high, "decimal")
        return float(value)

    def object(self, name: str) -> Self | None:
        """An object."""
        value = self.get(name)
        return None if value is None else type(self)(value, self.path(name))

    def need_object(self, name: str) -> Self:
        """An object that must be given."""
        return type(self)(self.need(name), self.path(name))

    def array(self, name: str) -> list[Any] | None:
        """An array."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong_type(self.path(name), "an array", value)
        return value

    def _check_range(self, name: str, value: float, low: float, high: float, what: str) -> None:
        if low <= value <= high:
            return
        side, short, sign, bound = ("above", "max", "<=", high) if value > high else ("below", "min", ">=", low)
        message = (
            f"Invalid '{self.path(name)}': {what} {side} {short}imum value. "
            f"Expected a value {sign} {bound}, but got {value} instead."
        )
        raise self.error(self.path(name), message, f"{what}_{side}_{short}_value")


wrong_type, missing = Fields.wrong_type, Fields.missing


def unsupported(param: str, what: str) -> Exception:
    """The error for something that the protocol knows, but that can't be had here; ``what`` is a sentence."""
    return Fields.error(param, f"Unsupported value for '{param}': {what}", "unsupported_value")
