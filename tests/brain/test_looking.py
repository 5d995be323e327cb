"""Whether the endpoint is there: at the start, in an outage and after it, and when it is looked at once."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from tests.brain.conftest import DONE, HELLO, Answer, Brain, refused, streamed
from tests.brain.talk import PATIENCE, Start, Talk, options
from voicechat.bench.child import free_port
from voicechat.brain.stage import look
from voicechat.cascade.traffic import failure
from voicechat.contract.errors import NotReady
from voicechat.contract.messages import Failed, Written
from voicechat.faces.errors import from_cascade


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
    port = free_port()
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


async def test_looking_once(brain: Brain) -> None:
    assert await asyncio.to_thread(look, options(brain.url)) is None
    brain.models, brain.answer = [], refused(404)
    fault = await asyncio.to_thread(look, options(brain.url))
    assert fault is not None
    assert fault.lasting
    fault = await asyncio.to_thread(look, options("http://127.0.0.1:9/v1"))
    assert fault is not None
    assert fault.kind == "unreachable"
