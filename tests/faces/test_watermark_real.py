"""Whichever way sound leaves the server, all stages real, it is marked; and the server itself says so.

One mark is looked for in everything that came: every face, format, mode and speed, stored sound included.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from openai import APIStatusError, AsyncOpenAI

from tests.conftest import TINY
from tests.human_speech import recording
from tests.rtc_client import RATE as RTC_RATE
from tests.rtc_client import Client
from tests.ws_server import Raw
from voicechat.config import load_settings
from voicechat.contract.provenance import MarkReport
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.faces.speech import RESPONSE_FORMATS
from voicechat.marking import known_keys, own_mark
from voicechat.media import g711
from voicechat.media.encode import FORMATS
from voicechat.media.resample import to_pcm
from voicechat.media.wav import encode_wav
from voicechat.provenance import detect_file
from voicechat.watermark.keys import Key

TEXT = "The early train to the north leaves at nine in the morning, and the ticket costs twenty five dollars."
STORY = [{"role": "user", "content": "Tell me a short story about a dog and a boat."}]
STRANGER = Key(bytes(32))


class Lens:
    """Looks for marks in what came."""

    def __init__(self, folder: Path) -> None:
        settings = load_settings(TINY)
        self.keys = known_keys(settings, make=False)
        self.mark = own_mark(settings)
        self._folder = folder
        self._count = 0

    def report(self, data: bytes, keys: list[Key] | None = None) -> MarkReport:
        self._count += 1
        path = self._folder / f"{self._count}"
        path.write_bytes(data)
        return detect_file(path, keys or self.keys)

    def check(self, data: bytes, what: str, at_least: float = 2.0, *, readable: bool = True) -> None:
        """A file holds speech with our mark; ``readable``: with its payload."""
        found = self.report(data)
        assert found.duration_s >= at_least, f"{what}: too little was said to test anything"
        assert found.detected, f"{what} left unmarked: {found}"
        payloads = {span.payload for span in found.spans}
        assert self.mark.payload in payloads or (not readable and payloads == {None}), f"{what}: {found.spans}"
        assert {span.key_id for span in found.spans} == {self.mark.key_id}


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> Lens:
    return Lens(tmp_path_factory.mktemp("sounds"))


@pytest.fixture
async def real(real_server: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{real_server}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def wav(pcm: Pcm, rate: int = PCM_RATE) -> bytes:
    return encode_wav(pcm, rate)


def little_endian(data: bytes) -> Pcm:
    return np.frombuffer(data, "<i2").astype(np.int16)


async def said(real: AsyncOpenAI, lens: Lens, fmt: str = "wav", text: str = TEXT, **options: Any) -> bytes:
    """A text spoken; the file."""
    extra = {"seed": 3, **options.pop("extra", {})}
    reply = await real.audio.speech.create(
        model=TINY, voice="alloy", input=text, response_format=fmt, extra_body=extra, **options
    )
    return reply.content if fmt != "pcm" else wav(little_endian(reply.content))


async def test_speech_in_every_format(real: AsyncOpenAI, lens: Lens) -> None:
    files = await asyncio.gather(*(said(real, lens, fmt) for fmt in RESPONSE_FORMATS))
    for fmt, data in zip(RESPONSE_FORMATS, files, strict=True):
        lens.check(data, f"speech as {fmt}")
    assert not lens.report(files[0], [STRANGER]).detected, "a wrong key finds nothing"


async def test_speech_at_every_speed_and_in_the_other_mode(real: AsyncOpenAI, lens: Lens) -> None:
    speeds = {0.25: TEXT[:40], 0.5: TEXT, 1.5: TEXT, 2.0: " ".join([TEXT] * 4), 4.0: " ".join([TEXT] * 8)}
    files = await asyncio.gather(*(said(real, lens, "flac", text, speed=speed) for speed, text in speeds.items()))
    for speed, data in zip(speeds, files, strict=True):
        # speech that is twice as fast has half as much in it to hide the payload in
        lens.check(data, f"speech at speed {speed}", readable=speed < 2.0)
    lens.check(await said(real, lens, "flac", extra={"latency_first": False}), "quality first")


async def test_speech_as_events(real: AsyncOpenAI, real_server: str, lens: Lens) -> None:
    body = {"model": TINY, "voice": "alloy", "input": TEXT, "response_format": "mp3", "stream_format": "sse", "seed": 3}
    events = await events_of(f"{real_server}/v1/audio/speech", body)
    lens.check(b"".join(base64.b64decode(e["audio"]) for e in events if "audio" in e), "speech as events")


async def events_of(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as reply:
        lines = (await reply.text()).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def test_chat_in_every_format(real: AsyncOpenAI, lens: Lens) -> None:
    async def ask(fmt: str, messages: list[Any] = STORY) -> Any:
        reply = await real.chat.completions.create(
            model=TINY,
            messages=messages,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": fmt},  # type: ignore[typeddict-item]
            max_tokens=40,
            seed=3,
        )
        assert reply.choices[0].message.audio is not None
        return reply.choices[0].message.audio

    replies = await asyncio.gather(*map(ask, FORMATS))
    for fmt, reply in zip(FORMATS, replies, strict=True):
        data = base64.b64decode(reply.data)
        lens.check(wav(little_endian(data)) if fmt == "pcm16" else data, f"chat as {fmt}")
    earlier = {"role": "assistant", "audio": {"id": replies[0].id}}
    again = await ask("wav", [*STORY, earlier, {"role": "user", "content": "And how does the story end?"}])
    lens.check(base64.b64decode(again.data), "a reply to an earlier one")


async def test_chat_as_a_stream(real: AsyncOpenAI, lens: Lens) -> None:
    stream = await real.chat.completions.create(
        model=TINY,
        messages=STORY,  # type: ignore[arg-type]
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        max_tokens=40,
        seed=3,
        stream=True,
    )
    parts = []
    async for chunk in stream:
        audio = getattr(chunk.choices[0].delta, "audio", None) if chunk.choices else None
        if audio and audio.data:
            parts.append(base64.b64decode(audio.data))
    lens.check(wav(little_endian(b"".join(parts))), "chat as a stream")


@pytest.mark.parametrize(
    ("form", "speed"), [("audio/pcm", 1.0), ("audio/pcm", 1.5), ("audio/pcmu", 1.0), ("audio/pcma", 1.0)]
)
async def test_realtime_over_websocket(real_server: str, lens: Lens, form: str, speed: float) -> None:
    output = {"format": {"type": form, **({"rate": PCM_RATE} if form == "audio/pcm" else {})}, "speed": speed}
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{real_server}/v1/realtime", max_msg_size=0) as ws:
        raw = Raw(ws)
        await raw.tell(
            "session.update", session={"type": "realtime", "max_output_tokens": 40, "audio": {"output": output}}
        )
        await raw.ask(STORY[0]["content"])
        done = await raw.until("response.done")
        data = raw.sound()
        if form == "audio/pcm":
            lens.check(wav(little_endian(data)), f"realtime at speed {speed}")
        else:
            law: Any = form.removeprefix("audio/")
            lens.check(wav(g711.decode(data, law), g711.G711_RATE), f"realtime as {form}")
        await raw.tell("conversation.item.retrieve", item_id=done["response"]["output"][0]["id"])
        item = (await raw.until("conversation.item.retrieved"))["item"]
        lens.check(wav(little_endian(base64.b64decode(item["content"][0]["audio"]))), "what is stored of a reply")


@pytest.mark.parametrize("speed", [1.0, 1.25])
async def test_realtime_over_webrtc(real_server: str, lens: Lens, speed: float) -> None:
    async with aiohttp.ClientSession() as http:
        client = Client(http, real_server)
        try:
            session = {"type": "realtime", "max_output_tokens": 40, "audio": {"output": {"speed": speed}}}
            await client.connect(session)
            client.ask(STORY[0]["content"])
            await client.wait_for("output_audio_buffer.stopped", within=60)
            heard = np.concatenate([sound for _, sound in client.heard])
        finally:
            await client.close()
    lens.check(wav(to_pcm(heard), RTC_RATE), f"WebRTC at speed {speed}")


async def test_the_server_checks_what_it_made(real: AsyncOpenAI, lens: Lens) -> None:
    made = await said(real, lens, "mp3")
    c2pa, mark = (await real.content_provenance_checks.create(file=("reply.mp3", made))).results
    found = mark.to_dict()
    assert found["outcome"] == "detected" and found["made_here"] is True
    assert (found["payload"], found["key_id"]) == (lens.mark.payload, lens.mark.key_id)
    assert (c2pa.outcome, c2pa.validation_state) == ("not_detected", "not_present")
    person = (await real.content_provenance_checks.create(file=("person.wav", wav(recording(10.0))))).results[1]
    assert person.outcome == "not_detected" and person.to_dict()["spans"] == []
    told = (await real.models.list()).data[0].to_dict()["watermark"]
    assert told == {"enabled": True, "payload": lens.mark.payload, "key_id": lens.mark.key_id}


@pytest.mark.parametrize(
    ("pcm", "code"),
    [
        (np.zeros(3 * PCM_RATE, np.int16), "silent"),
        (np.full(2_000, 5_000, np.int16), "too_short"),
        (None, "unreadable"),
    ],
)
async def test_files_in_which_nothing_can_be_found(real: AsyncOpenAI, pcm: Pcm | None, code: str) -> None:
    data = b"no sound" * 100 if pcm is None else wav(pcm)
    with pytest.raises(APIStatusError) as caught:
        await real.content_provenance_checks.create(file=("file", io.BytesIO(data)))
    assert (caught.value.status_code, caught.value.code) == (400, code)
