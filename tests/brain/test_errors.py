"""An endpoint that does everything wrong that endpoints do: told exactly, once, and the next request is well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.brain.conftest import DONE, Answer, Brain, chunk, event, refused, streamed
from tests.brain.talk import PATIENCE, Start
from voicechat.brain.errors import retry_after
from voicechat.cascade.traffic import failure
from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, Overloaded, StageFailed
from voicechat.contract.messages import Failed, Written
from voicechat.faces.errors import from_cascade

BUSY = {"error": {"message": "slow down", "type": "x", "code": "rate_limit"}}
LONG = {"error": {"message": "too many tokens", "param": "messages", "code": "context_length_exceeded"}}
WRONG: dict[str, tuple[Answer, type[CascadeError], int, str]] = {
    "400": (refused(400, LONG), InvalidRequest, 400, "too many tokens"),
    "422 of a framework": (refused(422, {"detail": [{"loc": ["body"]}]}), InvalidRequest, 400, "refuses this request"),
    "401": (refused(401, BUSY), StageFailed, 500, "API key"),
    "404": (refused(404, {"object": "error", "message": "no such model"}), StageFailed, 500, "no model 'm'"),
    "429": (refused(429, BUSY, Retry_After="7"), Overloaded, 429, "asked too often"),
    "503": (refused(503, "Loading model"), NotReady, 503, "not ready"),
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


def test_retry_after() -> None:
    assert retry_after(None) is None
    assert retry_after("1.5") == 1.5
    assert retry_after("-3") == 0
    assert retry_after("soon") is None
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert (retry_after("Fri, 31 Dec 2100 23:59:59 GMT") or 0) > 1e9
