"""Chunks of chat completions as endpoints send them: OpenAI's own shape, and what others make of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.brain.reply import Counts, MalformedReply, Reply
from voicechat.contract.messages import Call


def chunk(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def calls(*chunks: list[dict[str, Any]]) -> list[Call]:
    reply = Reply()
    for parts in chunks:
        assert reply.take(chunk(tool_calls=parts)) == ""
    return reply.calls()


def test_text_reason_and_counts() -> None:
    reply = Reply()
    assert reply.take(chunk(role="assistant", content="")) == ""
    assert not reply.begun
    assert reply.take(chunk(content="Hello")) == "Hello"
    assert reply.begun
    assert reply.take(chunk(content=" you.", role=None)) == " you."
    assert reply.take(chunk("length")) == ""
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    assert reply.take({"choices": [], "usage": usage}) == ""
    assert (reply.reason, reply.counts, reply.pieces, reply.calls()) == ("length", Counts(9, 4, 2), 2, [])


def test_a_whole_reply_counts_as_one_chunk() -> None:
    reply = Reply()
    message = {"role": "assistant", "content": "Hello", "tool_calls": None}
    assert reply.take({"choices": [{"message": message, "finish_reason": "stop"}], "usage": None}) == "Hello"
    assert (reply.reason, reply.counts) == ("stop", None)


def test_a_call_in_many_parts() -> None:
    assert calls(
        [{"index": 0, "id": "a", "type": "function", "function": {"name": "weather", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"city"'}}],
        [{"index": 1, "id": "b", "function": {"name": "clock", "arguments": "{}"}}],
        [{"index": 0, "function": {"arguments": ': "Rome"}'}}],
    ) == [Call("a", "weather", '{"city": "Rome"}'), Call("b", "clock", "{}")]


def test_whole_calls_without_index() -> None:
    """As some servers send them; one of these gives arguments as an object."""
    whole = [
        {"id": "a", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
        {"id": "b", "function": {"name": "clock", "arguments": ""}},
        {"function": {"name": "clock"}},
    ]
    wanted = [Call("a", "weather", '{"city":"Rome"}'), Call("b", "clock", "{}"), Call("call_2", "clock", "{}")]
    assert calls(whole) == wanted
    assert calls(*([part] for part in whole)) == wanted
    assert calls([whole[1]], [{"id": "b", "function": {"arguments": "{}"}}], [{"function": {"arguments": " "}}]) == [
        Call("b", "clock", "{} ")
    ]


THINKING = "<think>\nHm, Paris? </thin no.\n</think>\n\nParis it is. <think> stays."


@given(st.lists(st.integers(0, len(THINKING)), max_size=20))
def test_thoughts_are_not_spoken(cuts: list[int]) -> None:
    reply, shown, at = Reply(), "", 0
    for cut in [*sorted(cuts), len(THINKING)]:
        shown += reply.take(chunk(content=THINKING[at:cut]))
        at = cut
    assert shown + reply.rest() == "Paris it is. <think> stays."


@pytest.mark.parametrize("text", ["<thin ice", "  <", "", "\n\nHello", "<think", "a <think>b</think> c"])
def test_what_is_no_thought_is_all_spoken(text: str) -> None:
    reply = Reply()
    assert "".join(reply.take(chunk(content=letter)) for letter in text) + reply.rest() == text


def test_thoughts_without_end_say_nothing() -> None:
    reply = Reply()
    assert reply.take(chunk(content="<think> on and on")) == ""
    assert reply.rest() == ""
    assert reply.take(chunk(reasoning_content="hm", content=None)) == ""


@pytest.mark.parametrize(
    "value",
    [
        None, 5, [], "x", {}, {"choices": None}, {"choices": {}}, {"choices": ["x"]}, chunk(content=5),
        {"choices": [{"delta": "x"}]}, chunk(tool_calls={"x": 1}), chunk(tool_calls=["x"]),
        chunk(tool_calls=[{"function": "x"}]), chunk(tool_calls=[{"function": {"name": 5}}]),
    ],
)  # fmt: skip
def test_what_is_no_chunk(value: object) -> None:
    with pytest.raises(MalformedReply):
        Reply().take(value)


def test_a_call_without_a_name_and_far_too_many() -> None:
    with pytest.raises(MalformedReply, match="no name"):
        calls([{"index": 0, "function": {"arguments": "{}"}}])
    with pytest.raises(MalformedReply, match="more than"):
        calls([{"index": index, "function": {"name": "clock"}} for index in range(1000)])


@pytest.mark.parametrize("usage", [{"prompt_tokens": -1}, {"prompt_tokens": "9"}, {"prompt_tokens_details": 5}])
def test_odd_counts_are_none(usage: dict[str, Any]) -> None:
    reply = Reply()
    reply.take({"choices": [], "usage": usage})
    assert reply.counts == Counts()
