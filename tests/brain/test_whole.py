"""``voicechat serve --brain`` with vLLM's server as the brain, and with llama.cpp's: whole conversations, over the real
stages."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from tests.brain import brains
from tests.brain.brains import MODEL
from tests.cascade.listening import SPEAKERS, error_rate
from tests.real_server import RealServer, Servers, wait_until_gone
from voicechat.assemble import AssembledPaths
from voicechat.bench.child import free_port
from voicechat.config import Settings
from voicechat.media.resample import to_pcm
from voicechat.media.wav import encode_wav
from voicechat.models.embedded.thinker import SYSTEM_PROMPT

QUESTION = "What is the capital of France?"
START_SECONDS = 600
"""Bounds on a start and on an answer, so that a fault shows as a failure and not as a hang."""
TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}


@dataclass
class Pair:
    """A brain and a server that it thinks for. ``url`` and ``brain_url`` have no ``/v1``."""

    kind: str
    server: RealServer
    brain: subprocess.Popen[bytes]
    brain_url: str
    readiness: list[dict[str, Any]]
    """What ``/readyz`` said before the brain was there."""

    @property
    def url(self) -> str:
        return self.server.url


def call(url: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module", params=brains.KINDS)
def pair(
    request: pytest.FixtureRequest,
    servers: Servers,
    models: AssembledPaths,
    tiny_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """The brain is started once the server says that it waits for it."""
    servers.stop()
    folder = tmp_path_factory.mktemp("brain")
    port = free_port()
    brain_url = f"http://127.0.0.1:{port}"
    words = ["--brain", f"{brain_url}/v1", "--brain-model", MODEL, "--set", "pool.slots=3"]
    own = free_port()
    log = folder / "brain.log"
    server = RealServer("embedded-tiny", folder / "server.log", *words, "--port", str(own))
    readiness: list[dict[str, Any]] = []
    brain: subprocess.Popen[bytes] | None = None
    try:
        end = time.monotonic() + START_SECONDS
        while "is ready after" not in server.text():
            assert brain is None or brain.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < end, server.text() + (log.read_text(errors="replace") if brain else "")
            try:
                status, said = call(f"http://127.0.0.1:{own}/readyz")
                if status == 503:
                    readiness.append(said)
                    if brain is None and said["stages"]["brain"] == "unreachable":
                        brain = brains.start(request.param, tiny_settings, models, port, log)
            except urllib.error.URLError:
                pass  # it does not listen yet
            time.sleep(0.2)
        server.wait()
        assert brain is not None, "it was ready without its brain"
        yield Pair(request.param, server, brain, brain_url, readiness)
        server.stop()
    finally:
        if server.process.poll() is None:
            server.kill()
        if brain is not None:
            if brain.poll() is None:
                os.killpg(brain.pid, signal.SIGKILL)
            brain.wait()
            assert not wait_until_gone({brain.pid}, 5)


def asked_directly(pair: Pair, **fields: Any) -> dict[str, Any]:
    """What the brain answers when it is asked without us."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": QUESTION}]
    body = {"model": MODEL, "messages": messages, "temperature": 0, "seed": 1, **fields}
    status, answer = call(f"{pair.brain_url}/v1/chat/completions", body)
    assert status == 200, answer
    return answer


def chat(pair: Pair, content: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "embedded-tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, "seed": 1}
    status, answer = call(f"{pair.url}/v1/chat/completions", {**body, **fields})
    assert status == 200, answer
    return answer


SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "wav"}, "include_details": True}


def sound(data: str) -> list[dict[str, Any]]:
    return [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]


def test_the_server_waited_for_its_brain(pair: Pair) -> None:
    """And said so, while everything else was up."""
    assert any(said["stages"]["brain"] == "unreachable" for said in pair.readiness)
    assert all("brain" in said["waiting_for"] for said in pair.readiness if said["stages"]["brain"] == "unreachable")
    status, said = call(f"{pair.url}/readyz")
    assert status == 200
    assert said["stages"] == dict.fromkeys(("brain", "ears", "talker", "voicebox"), "up")


def test_a_text_is_what_the_brain_says(pair: Pair) -> None:
    for limit in (5, 64):
        answer, wanted = chat(pair, QUESTION, max_tokens=limit), asked_directly(pair, max_tokens=limit)
        ours, its = answer["choices"][0], wanted["choices"][0]
        assert ours["message"]["content"] == its["message"]["content"]
        assert ours["finish_reason"] == its["finish_reason"] == ("length" if limit == 5 else "stop")
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert answer["usage"][name] == wanted["usage"][name]


def test_a_stop_is_the_brains(pair: Pair) -> None:
    whole = asked_directly(pair, max_tokens=24)["choices"][0]["message"]["content"]
    stop = whole.split()[2]
    answer = chat(pair, QUESTION, max_tokens=24, stop=[stop])
    assert answer["choices"][0]["message"]["content"] == whole[: whole.index(stop)]


def test_a_spoken_conversation(pair: Pair) -> None:
    """A question in sound, heard by our ears, answered by the brain, spoken by our voice; and that is understood."""
    question = base64.b64encode(encode_wav(to_pcm(SPEAKERS["teacher"](QUESTION)), 16_000)).decode()
    first = chat(pair, sound(question), max_tokens=32, **SPOKEN)
    assert error_rate(QUESTION, first["details"]["heard"][0]) <= 0.2
    spoken = first["choices"][0]["message"]["audio"]
    again = chat(pair, sound(spoken["data"]), max_tokens=1, include_details=True)
    assert error_rate(spoken["transcript"], again["details"]["heard"][0]) <= 0.35
    times = first["details"]["times"]
    assert times["first_audio"] < times["done"]


def test_speech_begins_before_the_brain_has_finished(pair: Pair) -> None:
    answer = chat(pair, "Tell me a long story about a dog.", max_tokens=120, **SPOKEN)
    times = answer["details"]["times"]
    assert times["thinker_first_token"] < times["talker_first_code"] < times["thinker_done"]


async def test_a_realtime_conversation_with_a_tool(pair: Pair) -> None:
    """The brain must call it; the call and its result go there and back in the brain's own form."""
    client = AsyncOpenAI(
        base_url=f"{pair.url}/v1", websocket_base_url=pair.url.replace("http", "ws") + "/v1", api_key="none"
    )
    async with asyncio.timeout(START_SECONDS), client.realtime.connect(model="embedded-tiny") as connection:
        session = {"type": "realtime", "output_modalities": ["text"], "tools": [TOOL], "max_output_tokens": 60}
        await connection.session.update(session={**session, "tool_choice": {"type": "function", "name": "look_up"}})  # type: ignore[arg-type, typeddict-item]
        content = [{"type": "input_text", "text": "Look up the word cat."}]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})  # type: ignore[arg-type, typeddict-item]
        if pair.kind == "vllm":  # llama.cpp does not make a model call what it does not want to
            await connection.response.create()
            done = await _done(connection)
            (item,) = done.output
            assert (item.type, item.name) == ("function_call", "look_up")
            # what so small a model calls it with is any text; its template wants JSON when it is told of the call
            await connection.conversation.item.delete(item_id=item.id)
        told = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": '{"word": "cat"}'}
        await connection.conversation.item.create(item=told)  # type: ignore[arg-type]
        await connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": "call_1", "output": "a small animal"}
        )
        await connection.response.create(response={"tool_choice": "none"})
        done = await _done(connection)
        assert done.status in ("completed", "incomplete")
        assert done.output[0].type == "message"


async def _done(connection: Any) -> Any:
    async for event in connection:
        assert event.type != "error", event
        if event.type == "response.done":
            return event.response
    raise AssertionError("the session ended")


def test_speech_of_a_given_text_needs_no_brain(pair: Pair) -> None:
    body = {"model": "embedded-tiny", "input": "Hello there.", "voice": "heart", "response_format": "pcm"}
    request = urllib.request.Request(
        f"{pair.url}/v1/audio/speech", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
        assert np.frombuffer(answer.read(), "<i2").size > 12_000


def test_zz_without_its_brain_the_server_says_what_is_wrong(pair: Pair) -> None:
    """Last, for it ends the brain: a clear error for each request, and the server lives on."""
    os.killpg(pair.brain.pid, signal.SIGKILL)
    pair.brain.wait()
    body = {"model": "embedded-tiny", "messages": [{"role": "user", "content": QUESTION}]}
    for _ in range(2):
        status, answer = call(f"{pair.url}/v1/chat/completions", body)
        assert status == 503
        assert answer["error"]["code"] == "not_ready"
        assert "brain can't be reached" in answer["error"]["message"]
    status, said = call(f"{pair.url}/readyz")
    assert (status, said["stages"]["brain"], said["stages"]["talker"]) == (200, "unreachable", "up")
