"""Function calling: the tools that a client gives. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voicechat.contract import requests as cascade
from voicechat.contract.messages import ToolSpec
from voicechat.contract.tools import tools_prompt
from voicechat.realtime.fields import Fields, unsupported

MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call; ``parameters`` is its JSON schema."""

    name: str
    description: str | None = None
    parameters: Any = None

    def to_dict(self) -> dict[str, Any]:
        """As the protocol shows it."""
        shown: dict[str, Any] = {"type": "function", "name": self.name}
        if self.description is not None:
            shown["description"] = self.description
        if self.parameters is not None:
            shown["parameters"] = self.parameters
        return shown


def parse_tools(fields: Fields) -> tuple[Tool, ...]:
    """Field ``tools``. Raises :class:`~voicechat.realtime.errors.ClientError`."""
    values = fields.array("tools") or []
    if len(values) > MAX_TOOLS:
        raise unsupported(fields.path("tools"), f"at most {MAX_TOOLS} tools can be given.")
    tools = []
    for index, value in enumerate(values):
        tool = Fields(value, f"{fields.path('tools')}[{index}]")
        if tool.need_string("type") != "function":
            raise unsupported(tool.path("type"), "only tools of type 'function' can be used.")
        tool.only(("type", "name", "description", "parameters", "strict"))
        tool.object("parameters")
        tools.append(Tool(tool.need_string("name", 64), tool.string("description"), tool.get("parameters")))
    return tuple(tools)


def asked_tools(tools: Sequence[Tool], choice: object) -> dict[str, Any]:
    """The fields of a ``ResponseRequest`` that say which tools may, or must, be called."""
    must = choice.get("name") if isinstance(choice, dict) else None
    return {
        "tools": tuple(cascade.Tool(tool.name, tool.description, tool.parameters) for tool in tools),
        "tool_choice": "required" if isinstance(choice, dict) else choice,
        "must_call": must,
    }


def told_length(tools: Sequence[Tool], choice: object) -> int:
    """Characters that the model is told of its tools, about."""
    return len(tools_prompt([ToolSpec(tool.name, tool.description, tool.parameters) for tool in tools], str(choice)))
