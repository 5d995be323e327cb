"""A family from outside the package is added by its folder and a YAML alone, and is served by every face.

What is heard and read is held against transformers, sample for sample: so rows, codebooks, states and context have gone
their whole way through pool, wire and engines as the family's contract says.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.families.outside import HERE, install
from tests.real_server import ROOT, RealServer, Servers
from tests.rtc_client import Client
from voicechat.assemble import AssembledPaths
from voicechat.contract.sound import PCM_RATE
from voicechat.media.wav import encode_wav

YAML = HERE / "chimes.yaml"
TOKENS = 12
STEP_SAMPLES = 480


@dataclass
class Served:
    url: str
    reference: Any


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In which the package of the chimes is installed."""
    return install(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def served(
    servers: Servers, models: AssembledPaths, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """``voicechat serve --model chimes.yaml`` in that environment."""
    servers.stop()
    data = tmp_path_factory.mktemp("data")
    for folder in (models.ears.parent, models.detectors.parent):
        (data / folder.name).symlink_to(folder)
    arguments = ("--set", f"data_dir={data}", "--set", "pool.slots=3", "--set", "watermark.enabled=false")
    server = RealServer(str(YAML), data / "log", *arguments, environment=environment)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(environment["PYTHONPATH"].split(os.pathsep)[0])
        try:
            url = server.wait()
            from tests.families.reference import Reference

            yield Served(url, Reference(data / "chimes"))
        finally:
            if server.process.poll() is None:
                server.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
        yield session


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )


SHOW = "from voicechat.config import load_settings, ConfigError\nimport sys\n"


def test_its_settings_are_checked_by_itself(environment: dict[str, str]) -> None:
    code = f"{SHOW}print(load_settings({str(YAML)!r}, overrides=sys.argv[1:]).model)"
    shown = run(environment, code, "model.seed=7").stdout
    assert "seed=7" in shown and "family='chimes'" in shown
    wrong = run(environment, code, "model.sed=7").stderr
    assert "model.sed: no such setting; did you mean model.seed?" in wrong


def test_without_the_package_there_is_no_such_family() -> None:
    result = run({}, f"{SHOW}load_settings({str(YAML)!r})")
    assert "there is no family 'chimes'; there are embedded" in result.stderr


def test_the_server_loads_no_torch_for_it(environment: dict[str, str]) -> None:
    loaded = "print([name for name in ('torch', 'vllm') if name in sys.modules])"
    code = f"{SHOW}import voicechat.server\nload_settings({str(YAML)!r})\n{loaded}"
    assert run(environment, code).stdout.strip() == "[]"


def prompt_of(*words: str | int) -> list[int]:
    """Of a conversation of one turn: words, and marks by number."""
    from chimes.thinker import _words

    from tests.families.reference import mark

    ids = [mark("<s>"), mark("<system>"), *_words("Chime."), mark("<user>")]
    for word in words:
        ids += _words(word) if isinstance(word, str) else [word]
    return [*ids, mark("<assistant>")]


def of_wav(data: bytes) -> np.ndarray:
    return np.frombuffer(data[44:], np.int16)


async def chat(http: aiohttp.ClientSession, served: Served, content: Any, **more: Any) -> dict[str, Any]:
    body = {
        "model": "chimes",
        "modalities": ["text", "audio"],
        "audio": {"voice": "glass", "format": "wav"},
        "messages": [{"role": "user", "content": content}],
        **more,
    }
    async with http.post(f"{served.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


def check_reply(served: Served, prompt: list[int], text: str, pcm: np.ndarray, voice: int = 1) -> None:
    """Text and sound are those of transformers."""
    reference = served.reference
    tokens, rows = reference.write(prompt, TOKENS)
    assert text.split() == reference.text(tokens).split()
    expected = reference.speak(text.split(), voice, rows, len(prompt))
    assert len(set(expected.tolist())) > 100
    np.testing.assert_array_equal(pcm, expected)


async def test_models_and_voices(http: aiohttp.ClientSession, served: Served) -> None:
    async with http.get(f"{served.url}/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["chimes"]


async def test_chat_completions(http: aiohttp.ClientSession, served: Served) -> None:
    answer = await chat(http, served, "Ring for me please")
    audio = answer["choices"][0]["message"]["audio"]
    check_reply(served, prompt_of("Ring for me please"), audio["transcript"], of_wav(base64.b64decode(audio["data"])))
    assert answer["usage"]["completion_tokens"] >= TOKENS


async def test_many_at_once_are_each_their_own(http: aiohttp.ClientSession, served: Served) -> None:
    """Batches of the engines and of the VoiceBox: more replies than slots, begun at different times."""
    questions = [f"Ring number {number} now" + " and again" * number for number in range(7)]

    async def one(number: int) -> None:
        await asyncio.sleep(0.05 * number)
        audio = (await chat(http, served, questions[number]))["choices"][0]["message"]["audio"]
        check_reply(served, prompt_of(questions[number]), audio["transcript"], of_wav(base64.b64decode(audio["data"])))

    await asyncio.gather(*(one(number) for number in range(len(questions))))


async def test_a_sound_goes_to_the_thinker_itself(http: aiohttp.ClientSession, served: Served) -> None:
    """It is not transcribed: the prompt holds the model's own token for it, where it stands."""
    from tests.families.reference import mark

    for level, name in ((0.3, "<loud>"), (0.0, "<still>")):
        tone = (level * 32767 * np.sin(np.arange(PCM_RATE) / 9)).astype(np.int16)
        sound = {"data": base64.b64encode(encode_wav(tone, PCM_RATE)).decode(), "format": "wav"}
        content = [{"type": "text", "text": "Is"}, {"type": "input_audio", "input_audio": sound}]
        audio = (await chat(http, served, [*content, {"type": "text", "text": "loud"}]))["choices"][0]["message"][
            "audio"
        ]
        prompt = prompt_of("Is", mark(name), "loud")
        check_reply(served, prompt, audio["transcript"], of_wav(base64.b64decode(audio["data"])))


async def test_speech(http: aiohttp.ClientSession, served: Served) -> None:
    """No Thinker, no hidden rows."""
    body = {"model": "chimes", "input": "Ding dong bell", "voice": "brass", "response_format": "pcm"}
    async with http.post(f"{served.url}/v1/audio/speech", json=body) as response:
        assert response.status == 200, await response.text()
        pcm = np.frombuffer(await response.read(), np.int16)
    np.testing.assert_array_equal(pcm, served.reference.speak(["Ding", "dong", "bell"], 0))


async def test_realtime_over_websocket(http: aiohttp.ClientSession, served: Served) -> None:
    async with http.ws_connect(f"{served.url}/v1/realtime?model=chimes") as line:
        await line.send_json(
            {"type": "session.update", "session": {"type": "realtime", "audio": {"output": {"voice": "glass"}}}}
        )
        content = [{"type": "input_text", "text": "Ring twice"}]
        item = {"type": "message", "role": "user", "content": content}
        await line.send_json({"type": "conversation.item.create", "item": item})
        await line.send_json({"type": "response.create"})
        sound, text = b"", ""
        async with asyncio.timeout(60):
            async for message in line:
                event = message.json()
                assert event["type"] != "error", event
                if event["type"] == "response.output_audio.delta":
                    sound += base64.b64decode(event["delta"])
                elif event["type"] == "response.output_audio_transcript.done":
                    text = event["transcript"]
                elif event["type"] == "response.done":
                    assert event["response"]["status"] in ("completed", "incomplete"), event
                    break
    check_reply(served, prompt_of("Ring twice"), text, np.frombuffer(sound, np.int16))


async def test_realtime_over_webrtc(http: aiohttp.ClientSession, served: Served) -> None:
    """The text is that of transformers; the sound, which Opus changes, has the right length and is no silence."""
    caller = Client(http, served.url)
    try:
        await caller.connect({"type": "realtime", "model": "chimes", "audio": {"output": {"voice": "glass"}}})
        caller.ask("Ring once")
        done = await caller.wait_for("response.done", within=60)
        assert done["response"]["status"] in ("completed", "incomplete"), done
        said = await caller.wait_for("response.output_audio_transcript.done")
        await caller.wait_for("output_audio_buffer.stopped", within=60)
    finally:
        await caller.close()
    reference = served.reference
    tokens, rows = reference.write(prompt_of("Ring once"), TOKENS)
    assert said["transcript"].split() == reference.text(tokens).split()
    expected = len(reference.speak(said["transcript"].split(), 1, rows, len(prompt_of("Ring once")))) / PCM_RATE
    heard = np.concatenate([sound for _, sound in caller.heard])
    loud = np.abs(heard[: len(heard) // 480 * 480].reshape(-1, 480)).max(1) > 0.05
    assert abs(loud.sum() * 0.01 - expected) < 0.15


def png(colour: tuple[int, int, int]) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(made, "PNG")
    return made.getvalue()
