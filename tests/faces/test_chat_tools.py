"""Tools of chat completions, used by the unmodified client of the ``openai`` package."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.faces.conftest import WORD_SAMPLES, FakeCascade
from voicechat.contract.requests import CallPart, Message, ResultPart, TextPart, Tool
from voicechat.contract.tools import call_text

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "How it is", "parameters": CITY}}
QUESTION = [{"role": "user", "content": "Is it raining in Rome?"}]
ROME, OSLO = call_text("weather", '{"city": "Rome"}'), call_text("weather", '{"city": "Oslo"}')
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "ann", "format": "wav"}}


async def ask(client: AsyncOpenAI, **fields: Any) -> Any:
    fields = {"model": "fake-voice", "messages": QUESTION, "tools": [TOOL], **fields}
    return await client.chat.completions.create(**fields)


def arguments(calls: Any) -> list[Any]:
    assert len({call.id for call in calls}) == len(calls)
    assert {(call.type, call.function.name) for call in calls} == {("function", "weather")}
    return [json.loads(call.function.arguments) for call in calls]


async def test_calls_in_a_whole_reply(cascade: FakeCascade, client: AsyncOpenAI) -> None:
    cascade.reply = f"{ROME}\n{OSLO}"
    (choice,) = (await ask(client)).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert arguments(choice.message.tool_calls) == [{"city": "Rome"}, {"city": "Oslo"}]
    request = cascade.responses[0].request
    assert request.tools == (Tool("weather", "How it is", CITY),)
    assert (request.tool_choice, request.must_call) == ("auto", None)


async def test_text_before_a_call_is_spoken(cascade: FakeCascade, client: AsyncOpenAI) -> None:
    cascade.reply = f"I look. {ROME}"
    (choice,) = (await ask(client, **SPOKEN)).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.audio.transcript.strip() == "I look."
    assert arguments(choice.message.tool_calls) == [{"city": "Rome"}]


async def test_a_spoken_reply_of_calls_alone_has_no_sound(cascade: FakeCascade, client: AsyncOpenAI) -> None:
    cascade.reply = ROME
    (choice,) = (await ask(client, **SPOKEN)).choices
    assert choice.message.audio is None
    assert arguments(choice.message.tool_calls) == [{"city": "Rome"}]


@pytest.mark.parametrize("spoken", [False, True])
async def test_calls_in_a_stream(cascade: FakeCascade, client: AsyncOpenAI, spoken: bool) -> None:
    cascade.reply = f"I look. {ROME} {OSLO}"
    sound = {"modalities": ["text", "audio"], "audio": {"voice": "ann", "format": "pcm16"}} if spoken else {}
    text, calls, reasons = "", [], []
    async for chunk in await ask(client, stream=True, **sound):
        (choice,) = chunk.choices
        audio = choice.delta.model_dump().get("audio") or {}
        text += choice.delta.content or audio.get("transcript") or ""
        calls += choice.delta.tool_calls or []
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text.strip() == "I look."
    assert [call.index for call in calls] == [0, 1]
    assert arguments(calls) == [{"city": "Rome"}, {"city": "Oslo"}]
    assert reasons == ["tool_calls"]


async def test_an_answer_without_a_call(cascade: FakeCascade, client: AsyncOpenAI) -> None:
    cascade.reply = "No, it is dry. <tool"
    (choice,) = (await ask(client)).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "No, it is dry. <tool")
    assert choice.message.tool_calls is None
    spoken = (await ask(client, **SPOKEN)).choices[0].message.audio
    assert len(base64.b64decode(spoken.data)) == 44 + 2 * 5 * WORD_SAMPLES


async def test_a_call_cut_off_is_told_as_that(cascade: FakeCascade, client: AsyncOpenAI) -> None:
    cascade.reply = f"{ROME} and more words than that"
    (choice,) = (await ask(client, max_tokens=6)).choices
    assert choice.finish_reason == "length"


@pytest.mark.parametrize(
    ("given", "choice", "must"),
    [
        ("none", "none", None),
        ("auto", "auto", None),
        ("required", "required", None),
        ({"type": "function", "function": {"name": "weather"}}, "required", "weather"),
    ],
)
async def test_the_choice_is_passed_on(
    cascade: FakeCascade, client: AsyncOpenAI, given: object, choice: str, must: str | None
) -> None:
    cascade.reply = ROME
    (got,) = (await ask(client, tool_choice=given, parallel_tool_calls=True)).choices
    request = cascade.responses[0].request
    assert (request.tool_choice, request.must_call) == (choice, must)
    assert (got.message.content == ROME) == (choice == "none"), "without tools all is text"


async def test_results_go_back(cascade: FakeCascade, client: AsyncOpenAI) -> None:
    """The message with the calls just as the client got it, and the results of both."""
    cascade.reply = f"I look. {ROME} {OSLO}"
    told = (await ask(client)).choices[0].message
    one, two = told.tool_calls
    cascade.reply = "Dry."
    results = [
        {"role": "tool", "tool_call_id": two.id, "content": [{"type": "text", "text": "snow"}]},
        {"role": "tool", "tool_call_id": one.id, "content": "dry"},
    ]
    answer = await ask(client, messages=[*QUESTION, told, *results])
    assert answer.choices[0].message.content == "Dry."
    asked, call, *outcomes = cascade.responses[1].request.messages
    assert asked == Message.text("user", QUESTION[0]["content"])
    assert call.role == "assistant"
    assert isinstance(call.parts[0], TextPart)
    assert call.parts[1:] == (
        CallPart(one.id, "weather", '{"city": "Rome"}'),
        CallPart(two.id, "weather", '{"city": "Oslo"}'),
    )
    assert outcomes == [Message("user", (ResultPart(two.id, "snow"),)), Message("user", (ResultPart(one.id, "dry"),))]
