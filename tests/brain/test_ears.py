"""Ears elsewhere: asked as OpenAI's endpoint is, through our own face of it and through one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web

from tests.stages.pools import small_pool
from voicechat.bench.cascade_double import DoubleCascade
from voicechat.brain.ears import RemoteEars, RemoteEarsOptions
from voicechat.contract.hearing import HearingOptions
from voicechat.contract.messages import Abort, Failed, Message, Transcribe, Transcript
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.faces.app import FaceSettings, create_app
from voicechat.models.ears.whisper import settled_hearing

RATE = 16_000


class Stage:
    """The remote ears, and what they sent."""

    def __init__(self, url: str, spec: PoolSpec, *, key: str | None = "sk-1", timeout: float = 5.0) -> None:
        self.sent: list[Message] = []
        self.news = asyncio.Event()
        options = RemoteEarsOptions(url=url, model="whisper-1", api_key=key, language="en", timeout=timeout)
        self.ears = RemoteEars(options, spec, settled_hearing, on_message=self._take, on_death=lambda *_: None)

    def _take(self, message: Message) -> None:
        self.sent.append(message)
        self.news.set()

    async def heard(self) -> Message:
        while not self.sent:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 20)
        return self.sent.pop()


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[Pool]:
    made = Pool(small_pool(bays=2, bay_samples=2 * RATE), create=True)
    t = np.arange(2 * RATE) / RATE
    made.bays[0] = 0.3 * np.sin(2 * np.pi * 300 * t)
    yield made
    made.close()


Run = Callable[[web.Application], Awaitable[str]]


@pytest_asyncio.fixture
async def run() -> AsyncIterator[Run]:
    runners: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    yield start
    for runner in runners:
        await runner.cleanup()


def answering(status: int, body: bytes = b"{}", delay: float = 0.0) -> web.Application:
    async def post(request: web.Request) -> web.Response:
        await request.post()
        await asyncio.sleep(delay)
        return web.Response(status=status, body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", post)
    return app


async def test_our_own_server_hears(pool: Pool, run: Run) -> None:
    there = DoubleCascade(transcripts=["turn the light on"], ears_delay=0.0)
    stage = Stage(await run(create_app(there, FaceSettings(api_keys=("sk-1",)))), pool.spec)
    await stage.ears.start()
    assert stage.ears.up
    there.heard.clear()
    stage.ears.send(Transcribe(7, 0, 2 * RATE, HearingOptions(prompt="lights", temperature=0.5)))
    said = await stage.heard()
    assert isinstance(said, Transcript)
    assert (said.id, said.heard.text) == (7, "turn the light on")
    assert (there.asked[-1].language, there.asked[-1].prompt, there.asked[-1].temperature) == ("en", "lights", 0.5)
    (pcm,) = there.heard
    assert np.abs(pcm[: 2 * RATE] - pool.bays[0][: len(pcm)]).max() < 1e-3
    await stage.ears.stop()
    assert not stage.ears.up


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, b'{"error": {"message": "no such language", "param": "language"}}', "invalid"),
        (429, b"{}", "overloaded"),
        (503, b"{}", "unreachable"),
        (200, b"[1]", ""),
        (200, b"what?", ""),
        (500, b"{}", ""),
    ],
)
async def test_what_fails_is_told(pool: Pool, run: Run, status: int, body: bytes, kind: str) -> None:
    stage = Stage(await run(answering(status, body)), pool.spec)
    await stage.ears.start()
    stage.ears.send(Transcribe(1, 0, RATE))
    failed = await stage.heard()
    assert isinstance(failed, Failed)
    assert "brain" not in failed.message.lower()
    assert [name for name in ("invalid", "overloaded", "unreachable") if getattr(failed, name)] == [kind] * bool(kind)
    await stage.ears.stop()


async def test_a_wrong_setting_ends_the_start_and_an_absent_endpoint_does_not(pool: Pool, run: Run) -> None:
    for status, word in ((401, "API key"), (404, "no model 'whisper-1'")):
        stage = Stage(await run(answering(status)), pool.spec)
        with pytest.raises(RuntimeError, match=word):
            await stage.ears.start()
        assert not stage.ears.up
    absent = Stage("http://127.0.0.1:9/v1", pool.spec)
    await absent.ears.start()
    absent.ears.send(Transcribe(1, 0, RATE))
    failed = await absent.heard()
    assert isinstance(failed, Failed) and failed.unreachable and "127.0.0.1" not in failed.message
    await absent.ears.stop()


async def test_given_up_and_too_slow(pool: Pool, run: Run) -> None:
    stage = Stage(await run(answering(200, b'{"text": "late"}', delay=30)), pool.spec, timeout=0.3)
    await stage.ears.start()
    stage.ears.send(Transcribe(1, 0, RATE))
    await asyncio.sleep(0.02)
    stage.ears.send(Abort(1))
    cancelled = await stage.heard()
    assert isinstance(cancelled, Failed) and "cancelled" in cancelled.message
    stage.ears.send(Transcribe(2, 0, RATE))
    slow = await stage.heard()
    assert isinstance(slow, Failed) and "in time" in slow.message
    await stage.ears.stop()


async def test_what_repeats_itself_is_not_passed_on(pool: Pool, run: Run) -> None:
    stage = Stage(await run(answering(200, b'{"text": "press 0 for options press 0 for options"}')), pool.spec)
    await stage.ears.start()
    stage.ears.send(Transcribe(1, 0, RATE))
    said = await stage.heard()
    assert isinstance(said, Transcript) and said.heard.text == "press 0 for options"
    await stage.ears.stop()
