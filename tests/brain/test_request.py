"""The body of a chat completion, held against the types of the ``openai`` package."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from voicechat.brain.request import Dialect, completion_body, completion_messages
from voicechat.contract.messages import Call, Generate, ToolSpec, Turn

PLAIN = Dialect()
WEATHER = ToolSpec("weather", "How it is outside", {"type": "object", "properties": {"city": {"type": "string"}}})
CLOCK = ToolSpec("clock")


def body(message: Generate, *, max_tokens: int | None = None, dialect: Dialect = PLAIN) -> dict[str, Any]:
    made = completion_body(message, "m", system_prompt="Be brief.", max_tokens=max_tokens, dialect=dialect)
    checked(made)
    return made


def checked(made: dict[str, Any]) -> None:
    """The types of the openai package take it."""
    pydantic.TypeAdapter(list[ChatCompletionMessageParam]).validate_python(made["messages"])
    pydantic.TypeAdapter(list[ChatCompletionToolParam]).validate_python(made.get("tools", []))


def test_a_plain_question() -> None:
    assert body(Generate(1, (Turn("user", "Hi"),), True)) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_system_turn_of_the_callers_takes_the_place_of_ours() -> None:
    made = body(Generate(1, (Turn("system", "Rhyme."), Turn("user", "Hi")), True))
    assert [message["content"] for message in made["messages"]] == ["Rhyme.", "Hi"]


def test_sampling_is_passed_on() -> None:
    message = Generate(
        1, (Turn("user", "Hi"),), True, max_tokens=9, temperature=0.0, top_p=0.5, seed=0, stop=("\n", "END")
    )
    made = body(message, max_tokens=100)
    wanted = {"max_tokens": 9, "temperature": 0.0, "top_p": 0.5, "seed": 0, "stop": ["\n", "END"]}
    assert {name: made[name] for name in wanted} == wanted
    assert body(Generate(1, (Turn("user", "Hi"),), True), max_tokens=100)["max_tokens"] == 100


@pytest.mark.parametrize(
    ("choice", "must", "wanted"),
    [
        ("auto", None, "auto"),
        ("required", None, "required"),
        ("required", "clock", {"type": "function", "function": {"name": "clock"}}),
    ],
)
def test_tools_are_passed_on(choice: str, must: str | None, wanted: object) -> None:
    message = Generate(1, (Turn("user", "Hi"),), True, tools=(WEATHER, CLOCK), tool_choice=choice, must_call=must)
    made = body(message)
    assert made["tool_choice"] == wanted
    assert made["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "How it is outside",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        },
        {"type": "function", "function": {"name": "clock"}},
    ]


def test_no_tools_are_no_field() -> None:
    assert "tools" not in body(Generate(1, (Turn("user", "Hi"),), True, tools=(CLOCK,), tool_choice="none"))


def roles(turns: list[Turn]) -> list[tuple[str, str]]:
    made = completion_messages((Turn("system", "s"), *turns), "")
    checked({"messages": made})
    shown = []
    for message in made[1:]:
        calls = ",".join(call["id"] for call in message.get("tool_calls", ()))
        shown.append((message["role"], calls or message.get("tool_call_id") or message["content"]))
    return shown


def test_results_follow_their_calls() -> None:
    """Also when they came in another order, or something was said in between: endpoints refuse anything else."""
    one, two = Call("a", "weather", '{"city": "Rome"}'), Call("b", "clock", "")
    assert roles([
        Turn("user", "Hi"),
        Turn("assistant", "", (one,)),
        Turn("assistant", "", (two,)),
        Turn("user", "wait"),
        Turn("user", "noon", result_of="b"),
        Turn("user", "sunny", result_of="a"),
    ]) == [
        ("user", "Hi"), ("assistant", "a"), ("tool", "a"), ("assistant", "b"), ("tool", "b"), ("user", "wait"),
    ]  # fmt: skip
    assert roles([Turn("assistant", "I look.", (one, two)), Turn("user", "x", result_of="b")]) == [
        ("assistant", "b"), ("tool", "b"),
    ]  # fmt: skip


def test_calls_and_results_without_the_other() -> None:
    assert roles([Turn("assistant", "", (Call("a", "clock", ""),)), Turn("user", "Hi")]) == [("user", "Hi")]
    assert roles([Turn("assistant", "Well.", (Call("a", "clock", ""),))]) == [("assistant", "Well.")]
    ((role, text),) = roles([Turn("user", "noon", result_of="gone")])
    assert role == "user"
    assert "noon" in text


def test_milder_dialects() -> None:
    first = Dialect()
    second = first.milder("Extra inputs are not permitted: stream_options")
    assert second == Dialect(stream_options=False)
    assert "stream_options" not in body(Generate(1, (Turn("user", "Hi"),), True), dialect=second)
    third = second.milder("Use 'max_completion_tokens' instead.")
    assert third is not None
    assert body(Generate(1, (Turn("user", "Hi"),), True, max_tokens=3), dialect=third)["max_completion_tokens"] == 3
    assert third.milder("max_completion_tokens and stream_options") is None
    assert first.milder("temperature is too high") is None
