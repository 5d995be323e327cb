"""The brain as the coordinator sees it, against an endpoint that answers in all the ways that are right."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from tests.brain.conftest import DONE, HELLO, USAGE, Answer, Brain, chunk, streamed
from tests.brain.talk import PATIENCE, QUESTION, Start, text
from voicechat.contract.messages import Abort, Call, Called, Generate, Piece, ToolSpec, Written


async def test_a_reply_as_it_comes(brain: Brain, start: Start) -> None:
    talk = await start(api_key="secret")
    assert (talk.stage.up, talk.stage.alive, talk.stage.state, talk.stage.pid) == (True, True, "up", None)
    said = await talk.ask()
    assert text(said) == ["Hello", " there."]
    assert said[-1] == Written(1, "stop", 12, 5, 2)
    assert brain.bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert set(brain.keys) == {"Bearer secret"}


async def test_words_are_passed_on_before_the_reply_is_over(brain: Brain, start: Start) -> None:
    gate = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk(content="First"))
        await gate.wait()
        await response.write(chunk("stop") + DONE)
        return response

    brain.answer = answer
    talk = await start()
    talk.stage.send(Generate(1, QUESTION, True))
    await talk.until(lambda: 1 in talk.said)
    assert text(talk.said[1]) == ["First"]
    gate.set()
    assert isinstance((await talk.end_of(1))[-1], Written)


WHOLE = {"choices": [{"message": {"content": "Hello there."}, "finish_reason": "stop"}]}
RIGHT: dict[str, tuple[Answer, str, str]] = {
    "byte by byte": (streamed(*[bytes([b]) for part in (*HELLO, DONE) for b in part]), "Hello there.", "stop"),
    "CRLF and comments": (
        streamed(*(b": ping\r\n\r\n" + part.replace(b"\n", b"\r\n") for part in (*HELLO, DONE))),
        "Hello there.",
        "stop",
    ),
    "no [DONE]": (streamed(*HELLO), "Hello there.", "stop"),
    "no reason": (streamed(*HELLO[:3], DONE), "Hello there.", "stop"),
    "no last line": (streamed(*HELLO[:3], chunk("length").rstrip()), "Hello there.", "length"),
    "no stream": (streamed(json.dumps(WHOLE).encode(), content_type="application/json"), "Hello there.", "stop"),
    "odd content type": (streamed(*HELLO, DONE, content_type="text/plain"), "Hello there.", "stop"),
    "filtered": (streamed(*HELLO[:3], chunk("content_filter"), DONE), "Hello there.", "stop"),
    "nothing": (streamed(chunk("stop"), DONE), "", "stop"),
    "after the end": (streamed(*HELLO, DONE, b"data: what?\n\n"), "Hello there.", "stop"),
    "broken after the end": (streamed(*HELLO, DONE, broken=True), "Hello there.", "stop"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
async def test_replies_of_many_kinds(brain: Brain, start: Start, name: str) -> None:
    brain.answer, wanted, reason = RIGHT[name]
    talk = await start()
    said = await talk.ask()
    assert "".join(text(said)) == wanted
    assert isinstance(said[-1], Written)
    assert said[-1].reason == reason


async def test_an_endpoint_that_does_not_count(brain: Brain, start: Start) -> None:
    brain.answer = streamed(*HELLO, DONE)
    assert (await (await start()).ask())[-1] == Written(1, "stop", 0, 0, 2)


async def test_an_endpoint_that_leaves_the_connection_open(brain: Brain, start: Start) -> None:
    """Once it has said why its reply ends, a little patience for its counts is enough."""
    brain.answer = streamed(*HELLO, 60.0)
    said = await (await start()).ask()
    assert isinstance(said[-1], Written)


async def test_tools(brain: Brain, start: Start) -> None:
    brain.answer = streamed(
        chunk(content="I look."),
        chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "clock", "arguments": '{"in"'}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": ': "Rome"}'}}]),
        chunk("tool_calls"),
        DONE,
    )
    said = await (await start()).ask(tools=(ToolSpec("clock"),), tool_choice="required")
    assert text(said) == ["I look."]
    assert said[1:] == [Called(1, (Call("a", "clock", '{"in": "Rome"}'),)), Written(1, "stop", 0, 0, 1)]
    assert brain.bodies[-1]["tool_choice"] == "required"


async def test_an_abort_hangs_up_at_once(brain: Brain, start: Start) -> None:
    brain.answer = streamed(chunk(content="Hello"), *[0.02, chunk(content=" and on")] * 1000)
    talk = await start()
    talk.stage.send(Generate(1, QUESTION, True))
    await talk.until(lambda: 1 in talk.said)
    talk.stage.send(Abort(1))
    said = await talk.end_of(1)
    assert all(isinstance(message, Piece) for message in said)
    await asyncio.wait_for(brain.hung_up.wait(), PATIENCE)


async def test_an_abort_before_the_first_step(brain: Brain, start: Start) -> None:
    talk = await start()
    talk.stage.send(Generate(1, QUESTION, True))
    talk.stage.send(Abort(1))
    assert await talk.end_of(1) == []
    talk.stage.send(Abort(1))
    assert not brain.bodies


async def test_connections_are_kept(brain: Brain, start: Start) -> None:
    talk = await start()
    for number in range(1, 5):
        await talk.ask(number)
    assert len(brain.connections) == 1


async def test_a_kept_connection_that_was_closed_meanwhile(brain: Brain, start: Start) -> None:
    talk = await start()
    await talk.ask(1)
    assert len(brain.connections) == 1
    usual, count = brain.answer, 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count == 1:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return await usual(request)

    brain.answer = answer
    assert isinstance((await talk.ask(2))[-1], Written)
    assert count == 2


@pytest.mark.parametrize(
    ("words", "field", "instead"),
    [
        ("Unrecognized request argument: stream_options", "stream_options", None),
        ("'max_tokens' is not supported. Use 'max_completion_tokens' instead.", "max_tokens", "max_completion_tokens"),
    ],
)
async def test_an_endpoint_that_refuses_a_field(
    brain: Brain, start: Start, words: str, field: str, instead: str | None
) -> None:
    """It is asked again in its own way, and in that way from then on."""
    usual = brain.answer

    async def answer(request: web.Request) -> web.StreamResponse:
        if field in brain.bodies[-1]:
            return web.json_response({"error": {"message": words}}, status=400)
        return await usual(request)

    brain.answer = answer
    talk = await start()
    assert isinstance((await talk.ask(1, max_tokens=7))[-1], Written)
    assert len(brain.bodies) == 2
    assert instead is None or brain.bodies[-1][instead] == 7
    await talk.ask(2, max_tokens=7)
    assert len(brain.bodies) == 3


async def test_many_at_once(brain: Brain, start: Start) -> None:
    brain.answer = streamed(*HELLO[:2], 0.05, *HELLO[2:], USAGE, DONE)
    talk = await start()
    replies = await asyncio.gather(*(talk.ask(number) for number in range(1, 21)))
    assert all("".join(text(said)) == "Hello there." for said in replies)


async def test_stop_ends_what_runs(brain: Brain, start: Start) -> None:
    brain.answer = streamed(chunk(content="Hello"), 60.0)
    talk = await start()
    talk.stage.send(Generate(1, QUESTION, True))
    await talk.until(lambda: 1 in talk.said)
    await talk.stage.stop()
    assert await talk.end_of(1)
    talk.stage.send(Generate(2, QUESTION, True))
    assert 2 not in talk.said
