"""Tools as text: what a model is told, and what its calls look like to those who read replies."""

from __future__ import annotations

import json

import pytest

from voicechat.cascade.coordinator import turns_of
from voicechat.contract.calls import CallParser, ToolCall
from voicechat.contract.messages import Call, Generate, ToolSpec, Turn
from voicechat.contract.requests import AudioPart, CallPart, Message, ResultPart, TextPart
from voicechat.contract.tools import as_text, call_text, output_text, tools_prompt

CLOCK = ToolSpec("clock", "The time", {"type": "object"})


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [('{"in": "Rome"}', '{"in": "Rome"}'), ("", "{}"), ("{oops", "{oops"), ("[1]", "[1]"), ('"x"', '"x"')],
)
def test_a_call_is_read_as_it_was_made(arguments: str, wanted: str) -> None:
    """Also one whose arguments are no JSON object: that is for the caller to judge."""
    parser = CallParser(["clock"])
    assert [*parser.push(call_text("clock", arguments)), *parser.finish()] == [ToolCall("clock", wanted)]


def test_tools_are_told_in_the_system_turn() -> None:
    def told(*turns: Turn, choice: str = "auto") -> tuple[Turn, ...]:
        return as_text(Generate(1, turns, False, tools=(CLOCK,), tool_choice=choice), "Be brief.")

    first, second = told(Turn("user", "Hi"))
    assert second == Turn("user", "Hi")
    assert first.text.startswith("Be brief.\n\n# Tools")
    assert told(Turn("system", "Rhyme."), Turn("user", "Hi"))[0].text.startswith("Rhyme.\n\n# Tools")
    assert told(Turn("user", "Hi"), choice="none") == (Turn("user", "Hi"),)


def test_what_is_told_of_tools() -> None:
    prompt = tools_prompt((CLOCK,), "auto")
    (line,) = (line for line in prompt.splitlines() if line.startswith('{"type"'))
    assert json.loads(line) == {
        "type": "function",
        "function": {"name": "clock", "description": "The time", "parameters": {"type": "object"}},
    }
    assert "must" not in prompt
    assert "must call one" in tools_prompt((CLOCK,), "required")
    assert "must call the function clock" in tools_prompt((CLOCK,), "required", "clock")
    assert tools_prompt((), "auto") == ""


def test_earlier_calls_and_results_become_text() -> None:
    turns = (Turn("assistant", "I look.", (Call("a", "clock", "{}"),)), Turn("user", "noon", result_of="a"))
    assert as_text(Generate(1, turns, False), "") == (
        Turn("assistant", "I look.\n" + call_text("clock", "{}")),
        Turn("user", output_text("noon")),
    )


def test_messages_become_turns() -> None:
    heard, attached = iter(["hello"]), iter(range(0))
    sound = AudioPart(None)  # type: ignore[arg-type]
    assert turns_of(Message("user", (TextPart("a"), sound, TextPart("b"))), heard, attached) == [
        Turn("user", "a\nhello\nb")
    ]
    call = Message("assistant", (TextPart("I look."), CallPart("a", "clock", "{}")))
    assert turns_of(call, heard, attached) == [Turn("assistant", "I look.", (Call("a", "clock", "{}"),))]
    results = Message("user", (ResultPart("a", "noon"), ResultPart("b", "")))
    assert turns_of(results, heard, attached) == [Turn("user", "noon", result_of="a"), Turn("user", "", result_of="b")]
    assert turns_of(Message.text("user", ""), heard, attached) == [Turn("user", "")]
