"""Function calls in a model's text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.contract import requests as cascade
from voicechat.contract.calls import CallParser, ToolCall
from voicechat.contract.requests import ResponseRequest
from voicechat.realtime.tools import Tool, asked_tools, told_length

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "<b>"}}\n</tool_call>'
LOOK = ToolCall("look", '{"at": "<b>"}')


def parse(*pieces: str, names: tuple[str, ...] = ("look",)) -> list[str | ToolCall]:
    """Everything that comes out, with neighbouring texts joined."""
    parser = CallParser(names)
    found: list[str | ToolCall] = []
    for part in [*(found for piece in pieces for found in parser.push(piece)), *parser.finish()]:
        if found and isinstance(part, str) and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there.", ["Hello there."]),
        (CALL, [LOOK]),
        (f"Let me see. {CALL}", ["Let me see. ", LOOK]),
        (f"{CALL}\n{CALL}", [LOOK, LOOK]),
        ('{"name": "look", "arguments": {"at": "<b>"}}', [LOOK]),
        ('```json\n{"name": "look", "arguments": {"at": "<b>"}}\n```', [LOOK]),
        ('<tool_call>{"name": "look", "arguments": {"at": "<b>"}}', [LOOK]),
        ('<tool_call>{"name": "other"}</tool_call>', ['<tool_call>{"name": "other"}</tool_call>']),
        ("<tool_call>nonsense</tool_call>", ["<tool_call>nonsense</tool_call>"]),
        ("{not JSON}", ["{not JSON}"]),
        ("1 < 2 and <tool", ["1 < 2 and <tool"]),
        ("  \n Hello", ["Hello"]),
        (f"{CALL}\nThat was it.", [LOOK, "That was it."]),
        ("", []),
    ],
)
def test_whatever_the_pieces(text, expected):
    @given(st.lists(st.integers(0, len(text)), max_size=6))
    def check(cuts: list[int]) -> None:
        edges = [0, *sorted(cuts), len(text)]
        assert parse(*(text[a:b] for a, b in zip(edges, edges[1:], strict=False))) == expected

    check()


def test_without_tools_all_is_text():
    assert parse(CALL, names=()) == [CALL]


def test_what_the_cascade_is_asked():
    tools = (Tool("look", "Looks.", {"type": "object"}),)
    asked = ResponseRequest((), **asked_tools(tools, "auto"))
    assert asked.tools == (cascade.Tool("look", "Looks.", {"type": "object"}),)
    assert (asked.tool_choice, asked.must_call) == ("auto", None)
    assert ResponseRequest((), **asked_tools(tools, "none")).tool_choice == "none"
    forced = ResponseRequest((), **asked_tools(tools, {"type": "function", "name": "look"}))
    assert (forced.tool_choice, forced.must_call) == ("required", "look")
    assert told_length(tools, "auto") > 100
    assert told_length(tools, "none") == told_length((), "auto") == 0
