"""Tools as text: how models that know them only from their prompt are told of them, and how a call stands in a reply.

It is the form that Qwen and Hermes models were trained on. A call of a model that is given tools as such is written in
it too, so that whoever reads a reply knows one form only. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from voicechat.contract.messages import Generate, ToolSpec, Turn

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def tools_prompt(tools: Sequence[ToolSpec], choice: str, must_call: str | None = None) -> str:
    """What the model is told of its tools; may be empty."""
    if not tools or choice == "none":
        return ""
    lines = [json.dumps({"type": "function", "function": function_object(tool)}, ensure_ascii=False) for tool in tools]
    must = ""
    if must_call is not None:
        must = f"\nYou must call the function {must_call} now."
    elif choice == "required":
        must = "\nYou must call one of the functions now."
    return (
        "# Tools\n\nYou may call a function to help with the user's request. The functions, within <tools></tools>:\n"
        "<tools>\n" + "\n".join(lines) + "\n</tools>\n\n"
        f"To call one, reply with nothing but a JSON object with its name and arguments within {OPEN}{CLOSE}:\n"
        f'{OPEN}\n{{"name": <function-name>, "arguments": <arguments-object>}}\n{CLOSE}{must}'
    )


def function_object(tool: ToolSpec) -> dict[str, Any]:
    """A tool as chat completions describes it: name, description, parameters."""
    shown: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        shown["description"] = tool.description
    if tool.parameters is not None:
        shown["parameters"] = tool.parameters
    return shown


def call_text(name: str, arguments: str) -> str:
    """A call, as the model writes it. Arguments that are no JSON object are kept as a string."""
    try:
        whole = isinstance(json.loads(arguments or "{}"), dict)
    except ValueError:
        whole = False
    shown = (arguments or "{}") if whole else json.dumps(arguments)
    return f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": {shown}}}\n{CLOSE}'


def output_text(output: str) -> str:
    """The result of an earlier call, as the model is told of it."""
    return f"<tool_response>\n{output}\n</tool_response>"


def as_text(message: Generate, system_prompt: str) -> tuple[Turn, ...]:
    """The turns of a request with its tools, calls and results in the text, for a model that knows only text.

    ``system_prompt`` goes in front where the tools are to be told and the caller gave no system turn.
    """
    turns = [_plain(turn) for turn in message.turns]
    told = tools_prompt(message.tools, message.tool_choice, message.must_call)
    if told:
        first = next((index for index, turn in enumerate(turns) if turn.role == "system"), None)
        if first is None:
            turns.insert(0, Turn("system", f"{system_prompt}\n\n{told}"))
        else:
            turns[first] = Turn("system", f"{turns[first].text}\n\n{told}".lstrip())
    return tuple(turns)


def _plain(turn: Turn) -> Turn:
    if turn.result_of is not None:
        return Turn(turn.role, output_text(turn.text))
    calls = [call_text(call.name, call.arguments) for call in turn.calls]
    return Turn(turn.role, "\n".join(text for text in (turn.text, *calls) if text)) if calls else turn
