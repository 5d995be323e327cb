"""A tree of settings as files, the environment and flags give it: a later value wins, and each knows its origin."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class ConfigError(ValueError):
    """A setting is unknown or has a value that can't be used. ``str()`` names the key and its source."""


class Sources:
    """Values by section and key, not yet checked. All raise :class:`ConfigError`."""

    def __init__(self) -> None:
        self._tree: dict[str, Any] = {}
        self._origins: dict[str, str] = {}

    def put(self, keys: Sequence[str], value: object, origin: str) -> None:
        """One value, under its section's key, and so on, and its own."""
        node = self._tree
        for depth, key in enumerate(keys[:-1]):
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                name = ".".join(keys[: depth + 1])
                raise ConfigError(f"{name} is one value, it has no {keys[depth + 1]} (from {origin})")
        node[keys[-1]] = value
        self._origins[".".join(keys)] = origin

    def put_text(self, keys: Sequence[str], value: str, origin: str) -> None:
        """One value as the environment and flags give it; ``null`` is none."""
        self.put(keys, None if value.strip().lower() == "null" else value, origin)

    def put_file(self, path: Path) -> None:
        """All values of a YAML file."""
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: {error}") from None
        if content is None:
            return
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: not a mapping of sections")
        self._put_all([], content, str(path))

    def _put_all(self, prefix: list[str], content: Mapping[Any, Any], origin: str) -> None:
        for key, value in content.items():
            keys = [*prefix, str(key)]
            if isinstance(value, dict):
                self._put_all(keys, value, origin)
            else:
                self.put(keys, value, origin)

    def checked(self, model: type[Model], sections: Callable[[object], type[BaseModel] | None]) -> Model:
        """The tree as a model whose sections are models.

        ``sections`` gives the model of a section whose type depends on its content, None for all others.
        """
        try:
            return model.model_validate(self._tree)
        except ValidationError as error:
            raise ConfigError(self._explain(error, model, sections)) from None

    def _explain(
        self, error: ValidationError, model: type[BaseModel], sections: Callable[[object], type[BaseModel] | None]
    ) -> str:
        lines = []
        for item in error.errors():
            path = [str(part) for part in item["loc"]]
            dotted = ".".join(path)
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "extra_forbidden":
                message = "no such setting" + _suggest(path, model, sections(self._tree.get(path[0])))
            elif item["type"] in {"model_type", "dict_type", "model_attributes_type"}:
                message = "is a section, not one value"
            origin = next(
                (where for key, where in self._origins.items() if dotted == key or dotted.startswith(f"{key}.")), None
            )
            lines.append(f"{dotted}: {message}" if dotted else message)
            if origin:
                lines[-1] += f" (from {origin})"
        return "\n".join(lines)


def _suggest(path: list[str], section: type[BaseModel], first: type[BaseModel] | None) -> str:
    """What may have been meant. ``first`` is the model of the first section, if it is not the declared one."""
    for depth, key in enumerate(path[:-1]):
        annotation = section.model_fields[key].annotation if depth or first is None else first
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ""
        section = annotation
    close = difflib.get_close_matches(path[-1], list(section.model_fields), n=1)
    return f"; did you mean {'.'.join([*path[:-1], close[0]])}?" if close else ""
