"""The brain as the coordinator sees it, against an endpoint that does everything that endpoints do, right and wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.brain.conftest import DONE, HELLO, USAGE, Answer, Brain, chunk, event, refused, streamed
from voicechat.brain.errors import retry_after
from voicechat.brain.stage import BrainOptions, BrainStage, look
from voicechat.cascade.api import CascadeError, InvalidRequest, NotReady, Overloaded, StageFailed
from voicechat.cascade.messages import (
    Abort,
    Call,
    Called,
    Failed,
    Generate,
    Message,
    Piece,
    Released,
    ToolSpec,
    Turn,
    Written,
)
from voicechat.cascade.traffic import failure
from voicechat.faces.errors import from_cascade

PATIENCE = 20.0
QUESTION = (Turn("user", "Hi"),)


def options(url: str, **fields: Any) -> BrainOptions:
    given: dict[str, Any] = {
        "url": url, "model": "m", "api_key": None, "system_prompt": "Be brief.", "max_tokens": None,
        "connect_timeout": 2.0, "first_token_timeout": 5.0, "idle_timeout": 5.0,
    }  # fmt: skip
    return BrainOptions(**{**given, **fields})


class Talk:
    """A stage, and what it says of each request."""

    def __init__(self, made: BrainOptions) -> None:
        self.stage = BrainStage(made, on_message=self._take, on_death=lambda stage, how: None)
        self.said: dict[int, list[Message]] = {}
        self._news = asyncio.Event()

    def _take(self, message: Message) -> None:
        self.said.setdefault(message.id, []).append(message)  # type: ignore[union-attr]
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def ask(self, number: int = 1, **fields: Any) -> list[Message]:
        """All that is said of a request, without the last word, which is Released."""
        self.stage.send(Generate(number, QUESTION, True, **fields))
        return await self.end_of(number)

    async def end_of(self, number: int) -> list[Message]:
        await self.until(lambda: isinstance(self.said.get(number, [None])[-1], Released))
        *said, last = self.said[number]
        assert last == Released(number, 0)
        return said


Start = Callable[..., Awaitable[Talk]]


@pytest.fixture
async def start(brain: Brain) -> AsyncIterator[Start]:
    talks: list[Talk] = []

    async def begin(**fields: Any) -> Talk:
        talk = Talk(options(brain.url, **fields))
        talks.append(talk)
        await asyncio.wait_for(talk.stage.start(), PATIENCE)
        return talk

    yield begin
    for talk in talks:
        await talk.stage.stop()


def text(said: list[Message]) -> list[str]:
    return [piece for message in said if isinstance(message, Piece) for piece in message.pieces]


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


BUSY = {"error": {"message": "slow down", "type": "x", "code": "rate_limit"}}
LONG = {"error": {"message": "too many tokens", "param": "messages", "code": "context_length_exceeded"}}
WRONG: dict[str, tuple[Answer, type[CascadeError], int, str]] = {
    "400": (refused(400, LONG), InvalidRequest, 400, "too many tokens"),
    "422 of a framework": (refused(422, {"detail": [{"loc": ["body"]}]}), InvalidRequest, 400, "refuses this request"),
    "401": (refused(401, BUSY), StageFailed, 500, "API key"),
    "404": (refused(404, {"object": "error", "message": "no such model"}), StageFailed, 500, "no model 'm'"),
    "429": (refused(429, BUSY, Retry_After="7"), Overloaded, 503, "asked too often"),
    "503": (refused(503, "Loading model"), Overloaded, 503, "not ready"),
    "500": (refused(500, {"error": "out of memory"}), StageFailed, 500, "HTTP 500"),
    "a redirect": (refused(307, None, Location="/"), StageFailed, 500, "elsewhere"),
    "no JSON": (streamed(chunk(content="Hel"), b"data: {oops\n\n"), StageFailed, 500, "not JSON"),
    "no UTF-8": (streamed(b"data: \xff\xfe\n\n"), StageFailed, 500, "can't be read"),
    "a page": (streamed(b"<html>Hello</html>", content_type="text/html"), StageFailed, 500, "broke off"),
    "no chunk": (streamed(event(["x"])), StageFailed, 500, "not a JSON object"),
    "an error inside": (
        streamed(chunk(content="Hel"), event({"error": {"message": "no memory"}})), StageFailed, 500, "no memory",
    ),
    "a refusal inside": (
        streamed(event({"error": {"message": "too long", "code": 400}})), InvalidRequest, 400, "too long",
    ),
    "an error event": (streamed(b"event: error\n" + event("bad luck")), StageFailed, 500, "bad luck"),
    "cut off": (streamed(chunk(content="Hel"), 0.1, broken=True), StageFailed, 500, "broke off"),
    "an early end": (streamed(chunk(content="Hel")), StageFailed, 500, "broke off"),
    "an unnamed call": (streamed(chunk("tool_calls", tool_calls=[{"index": 0}]), DONE), StageFailed, 500, "no name"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_what_goes_wrong_is_told_exactly(brain: Brain, start: Start, name: str) -> None:
    """One failure, of the right kind and HTTP status; and the next request is well."""
    usual = brain.answer
    brain.answer, kind, status, words = WRONG[name]
    talk = await start()
    said = await talk.ask()
    failed = said[-1]
    assert isinstance(failed, Failed)
    assert not any(isinstance(message, Failed | Written) for message in said[:-1])
    error = failure("brain", failed)
    assert type(error) is kind
    assert words in str(error)
    assert "127.0.0.1" not in str(error), "callers need not know where the brain is"
    shown = from_cascade(error)
    assert shown.status == status
    if name == "429":
        assert shown.headers["Retry-After"] == "7"
    if name == "400":
        assert (shown.param, shown.code) == ("messages", "context_length_exceeded")
    brain.answer = usual
    assert isinstance((await talk.ask(2))[-1], Written)
    assert talk.stage.up


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


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((60.0,), "did not answer in time"),
        ((b": ping\n\n", chunk(role="assistant", content=""), 60.0), "did not answer in time"),
        ((chunk(content="Hello"), 60.0), "fell silent"),
    ],
)
async def test_a_brain_that_says_nothing(brain: Brain, start: Start, parts: tuple[Any, ...], words: str) -> None:
    brain.answer = streamed(*parts)
    talk = await start(first_token_timeout=0.5, idle_timeout=0.4)
    failed = (await talk.ask())[-1]
    assert isinstance(failed, Failed)
    assert words in failed.message
    await asyncio.wait_for(brain.hung_up.wait(), PATIENCE)


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


# ---- whether it is there


async def test_an_endpoint_without_a_list_of_models_is_asked_for_a_token(brain: Brain, start: Start) -> None:
    brain.models = None
    await start()
    (body,) = brain.bodies
    assert body["max_tokens"] == 1


async def test_a_model_that_is_not_in_the_list_may_be_there(brain: Brain, start: Start) -> None:
    brain.models = ["m:latest"]
    await start()
    assert len(brain.bodies) == 1


@pytest.mark.parametrize(
    ("models", "answer", "status", "words"),
    [
        (["other"], refused(404, {"error": {"message": "no such model"}}), 200, "no model 'm'"),
        (["m"], refused(500), 401, "API key"),
    ],
)
async def test_a_wrong_setting_ends_the_start(
    brain: Brain, start: Start, models: list[str], answer: Answer, status: int, words: str
) -> None:
    brain.models, brain.answer, brain.status = models, answer, status
    with pytest.raises(RuntimeError, match=words):
        await start()


async def test_a_start_waits_for_the_endpoint(brain: Brain, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    brain.status = 503
    starting = asyncio.create_task(start())
    async with asyncio.timeout(PATIENCE):
        while "waiting for the brain" not in caplog.text:  # noqa: ASYNC110 - it is a log
            await asyncio.sleep(0.02)
    assert not starting.done()
    brain.status = 200
    talk = await starting
    assert talk.stage.state == "up"


async def test_an_outage_fails_what_is_in_hand_and_passes() -> None:
    """Unreachable, the caller is told so at once; when it is back, the next request is answered, and health tells."""
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        port = placeholder.getsockname()[1]
    talk = Talk(options(f"http://127.0.0.1:{port}/v1"))
    starting = asyncio.create_task(talk.stage.start())
    await asyncio.sleep(0.1)
    assert (talk.stage.up, talk.stage.alive, talk.stage.state) == (False, True, "unreachable")
    made = Brain(streamed(*HELLO, DONE))
    app = web.Application()
    app.router.add_get("/v1/models", made.list_models)
    app.router.add_post("/v1/chat/completions", made.complete)

    async def serve() -> web.AppRunner:
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    runner = await serve()
    await asyncio.wait_for(starting, PATIENCE)
    await runner.cleanup()
    failed = (await talk.ask(1))[-1]
    assert isinstance(failed, Failed)
    error = failure("brain", failed)
    assert isinstance(error, NotReady)
    assert from_cascade(error).status == 503
    assert (talk.stage.up, talk.stage.state) == (True, "unreachable")
    app = web.Application()
    app.router.add_get("/v1/models", made.list_models)
    app.router.add_post("/v1/chat/completions", made.complete)
    runner = await serve()
    assert isinstance((await talk.ask(2))[-1], Written)
    assert talk.stage.state == "up"
    await talk.stage.stop()
    assert (talk.stage.up, talk.stage.state) == (False, "down")
    await runner.cleanup()


async def test_stop_ends_what_runs(brain: Brain, start: Start) -> None:
    brain.answer = streamed(chunk(content="Hello"), 60.0)
    talk = await start()
    talk.stage.send(Generate(1, QUESTION, True))
    await talk.until(lambda: 1 in talk.said)
    await talk.stage.stop()
    assert await talk.end_of(1)
    talk.stage.send(Generate(2, QUESTION, True))
    assert 2 not in talk.said


async def test_looking_once(brain: Brain) -> None:
    assert await asyncio.to_thread(look, options(brain.url)) is None
    brain.models, brain.answer = [], refused(404)
    fault = await asyncio.to_thread(look, options(brain.url))
    assert fault is not None
    assert fault.lasting
    fault = await asyncio.to_thread(look, options("http://127.0.0.1:9/v1"))
    assert fault is not None
    assert fault.kind == "unreachable"


def test_retry_after() -> None:
    assert retry_after(None) is None
    assert retry_after("1.5") == 1.5
    assert retry_after("-3") == 0
    assert retry_after("soon") is None
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert (retry_after("Fri, 31 Dec 2100 23:59:59 GMT") or 0) > 1e9
