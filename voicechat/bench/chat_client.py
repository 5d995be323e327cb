"""A client of ``POST /v1/chat/completions`` that notes when what came. Knows nothing of the server's code."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from voicechat.bench.outcome import BenchError

PCM_RATE = 24_000
Pcm = npt.NDArray[np.int16]


class ClientError(BenchError):
    """The server could not be reached or did not answer as it should; ``str()`` says why."""


@dataclass(slots=True)
class Reply:
    """An answer. Times are seconds since the request was sent; ``chunks`` are (arrival, seconds of sound)."""

    text: str = ""
    heard: tuple[str, ...] = ()
    finish_reason: str | None = None
    first_text_s: float | None = None
    chunks: list[tuple[float, float]] = field(default_factory=list)
    done_s: float = 0.0
    times: dict[str, float | None] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    pcm: Pcm = field(default_factory=lambda: np.zeros(0, np.int16))

    @property
    def audio_s(self) -> float:
        """Seconds of sound."""
        return len(self.pcm) / PCM_RATE

    @property
    def ttfa_s(self) -> float | None:
        """Request sent until the first chunk with sound."""
        return self.chunks[0][0] if self.chunks else None


def text_part(text: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "text", "text": text}


def audio_part(data: bytes, fmt: str = "wav") -> dict[str, Any]:
    """A sound file as a part of a message; ``fmt`` is wav or mp3."""
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode("ascii"), "format": fmt}}


class ChatClient:
    """Asks one server. ``model`` None asks for whatever it serves. All methods raise :class:`ClientError`."""

    def __init__(
        self, http: aiohttp.ClientSession, base: str, *, model: str | None = None, api_key: str | None = None
    ) -> None:
        self.http = http
        self.base = base.rstrip("/")
        self.model = model
        self.api_key = api_key
        self.voice: str | None = None
        self.listed: dict[str, Any] = {}
        """What the server says of the model that it serves, once :meth:`look` has asked."""
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def look(self) -> str:
        """Learn what the server serves, and its voice; the model's name."""
        listing = await self.get_json("/v1/models")
        try:
            self.listed = listing["data"][0]
            self.model = self.model or str(self.listed["id"])
            self.voice = str(self.listed["default_voice"])
        except (KeyError, IndexError, TypeError):
            raise ClientError(f"{self.base}/v1/models does not list a model with its voice") from None
        return self.model

    async def get_json(self, path: str) -> Any:
        """What is at ``path``."""
        try:
            async with self.http.get(f"{self.base}{path}", headers=self.headers) as response:
                if response.status != 200:
                    raise ClientError(f"GET {path}: {await _error_text(response)}")
                return await response.json()
        except (aiohttp.ClientError, ValueError, TimeoutError) as error:
            raise ClientError(f"{self.base} can't be reached: {error or type(error).__name__}") from None

    async def ask(
        self,
        content: str | list[dict[str, Any]],
        *,
        latency_first: bool = True,
        max_tokens: int | None = None,
        timeout_s: float = 300.0,
    ) -> Reply:
        """Ask one question, ``content`` as in a message, and take the spoken answer in as it comes."""
        if self.voice is None:
            await self.look()
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "modalities": ["text", "audio"],
            "stream": True,
            **self._own_fields(latency_first, max_tokens),
        }
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        async with self._post("/v1/chat/completions", body, timeout_s) as (response, sent):
            return await self._take(response, sent)

    def _own_fields(self, latency_first: bool, max_tokens: int | None) -> dict[str, Any]:
        """What this kind of server is asked beside what all of them are."""
        audio = {"voice": self.voice, "format": "pcm16"}
        return {"audio": audio, "latency_first": latency_first, "include_details": True}

    def _parts(self, chunk: dict[str, Any], delta: dict[str, Any]) -> tuple[str | None, str | None]:
        """Text and sound (base64) of an event's choice."""
        audio = delta.get("audio") or {}
        return audio.get("transcript") or delta.get("content"), audio.get("data")

    async def speak(self, text: str, *, voice: str, latency_first: bool, seed: int, timeout_s: float) -> Pcm:
        """Have a text spoken through ``/v1/audio/speech``: int16 ``[n]`` at 24 kHz."""
        body = {
            "model": self.model, "voice": voice, "input": text, "latency_first": latency_first, "seed": seed,
            "response_format": "pcm",
        }  # fmt: skip
        async with self._post("/v1/audio/speech", body, timeout_s) as (response, _):
            return np.frombuffer(await response.read(), "<i2").astype(np.int16)

    @contextlib.asynccontextmanager
    async def _post(
        self, path: str, body: dict[str, Any], timeout_s: float
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, float]]:
        """The answer to a request, and when that was sent."""
        data = json.dumps(body).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout_s):
                sent = time.perf_counter()
                async with self.http.post(f"{self.base}{path}", data=data, headers=headers) as response:
                    if response.status != 200:
                        raise ClientError(await _error_text(response))
                    yield response, sent
        except TimeoutError:
            raise ClientError(f"no whole answer within {timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise ClientError(f"{self.base} can't be reached: {error or type(error).__name__}") from None

    async def _take(self, response: aiohttp.ClientResponse, sent: float) -> Reply:
        reply, sounds, texts, ended = Reply(), [], [], False
        async for arrival, event in _events(response):
            if event == "[DONE]":
                ended = True
                break
            try:
                chunk = json.loads(event)
                if "error" in chunk:
                    raise ClientError(str(chunk["error"]["message"]))
                _take_details(reply, chunk)
                for choice in chunk["choices"]:
                    reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
                    text, data = self._parts(chunk, choice["delta"])
                    if text:
                        texts.append(text)
                        reply.first_text_s = reply.first_text_s or arrival - sent
                    if data:
                        sound = np.frombuffer(base64.b64decode(data, validate=True), "<i2")
                        sounds.append(sound)
                        reply.chunks.append((arrival - sent, len(sound) / PCM_RATE))
            except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
                raise ClientError(f"the server sent an event that can't be read: {error!r}") from None
        if not ended:
            raise ClientError("the answer broke off")
        reply.done_s = time.perf_counter() - sent
        reply.text = "".join(texts)
        if sounds:
            reply.pcm = np.concatenate(sounds).astype(np.int16)
        return reply


def _take_details(reply: Reply, chunk: dict[str, Any]) -> None:
    if details := chunk.get("details"):
        reply.heard = tuple(details["heard"])
        reply.times = dict(details["times"])
        reply.usage = dict(details["usage"])


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, str]]:
    """Server-sent events with the time at which their last byte had come."""
    pending = b""
    async for data in response.content.iter_any():
        arrival = time.perf_counter()
        *whole, pending = (pending + data).split(b"\n\n")
        for event in whole:
            if event.startswith(b"data:"):
                yield arrival, event[5:].strip().decode("utf-8")


async def _error_text(response: aiohttp.ClientResponse) -> str:
    text = await response.text()
    try:
        return f"{json.loads(text)['error']['message']} (HTTP {response.status})"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status} {response.reason}"
