"""The tools of a chat request, checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voicechat.contract.requests import Tool
from voicechat.faces.fields import Fields, bad_field, wrong_type

MAX_TOOLS = 128
MAX_NAME = 64
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ChatTools:
    """Which tools may be called; ``must_call`` names the one that must be."""

    tools: tuple[Tool, ...] = ()
    choice: Literal["auto", "none", "required"] = "auto"
    must_call: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of those that may be called in the reply."""
        return [tool.name for tool in self.tools] if self.choice != "none" else []


def parse_tools(fields: Fields) -> ChatTools:
    """Check ``tools`` and ``tool_choice``. Raises :class:`~voicechat.faces.errors.ApiError`."""
    values = fields.array("tools") or []
    if len(values) > MAX_TOOLS:
        message = (
            f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}, "
            f"but got an array with length {len(values)} instead."
        )
        raise bad_field("tools", message, "array_above_max_length")
    tools = tuple(_tool(Fields(value, f"tools[{index}]")) for index, value in enumerate(values))
    chosen = fields.get("tool_choice")
    if not tools:
        if chosen not in (None, "none"):
            raise bad_field("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
        return ChatTools()
    if chosen is None:
        return ChatTools(tools)
    if isinstance(chosen, dict):
        return ChatTools(tools, "required", _named(fields.need_object("tool_choice"), tools))
    if not isinstance(chosen, str):
        raise wrong_type("tool_choice", "one of a string or an object", chosen)
    match fields.need_choice("tool_choice", CHOICES):
        case "none":
            return ChatTools(tools, "none")
        case "required":
            return ChatTools(tools, "required")
        case _:
            return ChatTools(tools)


def _tool(tool: Fields) -> Tool:
    tool.need_choice("type", ("function",))
    tool.only(("type", "function"))
    function = tool.need_object("function")
    function.only(("name", "description", "parameters", "strict"))
    function.boolean("strict")
    function.object("parameters")
    name = function.need_string("name", max_length=MAX_NAME)
    return Tool(name, function.string("description"), function.get("parameters"))


def _named(choice: Fields, tools: tuple[Tool, ...]) -> str:
    choice.need_choice("type", ("function",))
    choice.only(("type", "function"))
    function = choice.need_object("function")
    name = function.need_string("name", max_length=MAX_NAME)
    if name not in {tool.name for tool in tools}:
        message = f"Tool choice '{name}' not found in 'tools' parameter."
        raise bad_field("tool_choice", message)
    return name
