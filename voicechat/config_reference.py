"""The page of all settings, docs/settings.md: made from the types, bounds, defaults and descriptions in config.py."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from voicechat.config import ENV_PREFIX, Settings

HEAD = f"""# Settings

<!-- Made by `voicechat config --reference > docs/settings.md`; edit voicechat/config.py instead. -->

Later sources win:

1. the defaults below,
2. `configs/NAME.yaml` of `--model NAME`, or a YAML file of your own: `--model my.yaml`,
3. the environment, a section and its key joined by two underscores: `{ENV_PREFIX}SERVER__PORT=8080`,
4. flags: `--set server.port=8080`, and `--host`, `--port`, `--device`, `--brain`, `--brain-model`, `--brain-api-key`.

A list is written with commas (`--set server.api_keys=key1,key2`). An unknown key or a value out of bounds ends the
program with a line that names it. `voicechat config` prints what would be used. `{ENV_PREFIX}HOME` stands for
`data_dir`, `{ENV_PREFIX}MODEL` for `--model`.
"""

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_HEADINGS = ("| key | values | default | |", "|---|---|---|---|")
_NAMES = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path"}


def reference() -> str:
    """The page, in Markdown; ends with a newline."""
    return "\n".join([HEAD, *_tables("", Settings())])


def _tables(path: str, section: BaseModel) -> Iterator[str]:
    """The keys of a section with the values that it has, then the sections inside it."""
    fields = type(section).model_fields
    inside = {name: value for name in fields if isinstance(value := getattr(section, name), BaseModel)}
    if own := [name for name in fields if name not in inside]:
        about = inspect.cleandoc(type(section).__doc__ or "").replace("``", "`")
        yield "\n".join([f"## `{path}`" if path else "## At the top", "", about, "", *_HEADINGS])
        for name in own:
            key = f"{path}.{name}" if path else name
            cells = (f"`{key}`", _values(fields[name]), _value(getattr(section, name)), fields[name].description or "")
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""
    for name, value in inside.items():
        yield from _tables(f"{path}.{name}" if path else name, value)


def _values(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(entry, name)}"
        for entry in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(entry, name, None) is not None
    ]
    return ", ".join([_type(field.annotation), *bounds])


def _type(annotation: Any) -> str:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(inside[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin in (typing.Union, types.UnionType):
        return _type(next(kind for kind in inside if kind is not type(None)))
    if origin is tuple:
        return f"list of {_type(inside[0])}"
    if origin is dict:
        return f"{_type(inside[1])} by name"
    return _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`" if value else "none"
    return f"`{value}`"
