"""``POST /v1/chat/completions``: text or sound in, text or speech out, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from aiohttp import web

from voicechat.contract.calls import CallParser, ToolCall
from voicechat.contract.cascade import Cascade, Response
from voicechat.contract.errors import CascadeError, StageFailed
from voicechat.contract.events import AudioDelta, Event, Finished, FinishReason, Heard, TextDelta
from voicechat.contract.provenance import FileSigner
from voicechat.contract.requests import Message, ResponseRequest
from voicechat.contract.sound import Pcm
from voicechat.faces.audio_store import AudioStore
from voicechat.faces.body import read_json
from voicechat.faces.chat_messages import decode_messages, has_media
from voicechat.faces.chat_reply import DONE, ReplyShape, details_object, sse
from voicechat.faces.chat_request import ChatRequest, parse_chat
from voicechat.faces.chat_schema import operation
from voicechat.faces.errors import SERVER, ApiError, from_cascade, internal_error, json_response
from voicechat.faces.linked_images import LinkedImages
from voicechat.faces.operation import documented
from voicechat.media.encode import encode

log = logging.getLogger(__name__)

PATH = "/v1/chat/completions"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """Bounds of the chat face: sound of one part, and how long a reader of a stream may stand still."""

    max_audio_bytes: int
    max_audio_seconds: float
    write_timeout_s: float
    disconnect_poll_s: float = 0.1
    image_hosts: frozenset[str] = frozenset()
    """Hosts from which images are fetched."""


@dataclass(slots=True)
class Collected:
    """Everything of a reply."""

    text: str
    pcm: Pcm
    heard: tuple[str, ...]
    finished: Finished


class ChatFace:
    """The handler of the route; ``workers`` run what would hold up the event loop."""

    def __init__(
        self,
        cascade: Cascade,
        store: AudioStore,
        workers: Executor,
        limits: ChatLimits,
        signer: FileSigner | None = None,
    ) -> None:
        self._cascade = cascade
        self._store = store
        self._workers = workers
        self._limits = limits
        self._signer = signer
        self._linked = LinkedImages(limits.max_audio_bytes)

    def setup(self, app: web.Application) -> None:
        """Add the route."""
        app.on_cleanup.append(lambda _: self._linked.close())
        app.router.add_post(PATH, self.post)

    @documented(operation)
    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await read_json(request, self._workers)
        chat = parse_chat(body, self._cascade.model, self._store.get, self._limits.image_hosts)
        del body
        messages = await self._messages(chat)
        response = self._cascade.respond(
            ResponseRequest(
                messages=messages,
                audio=chat.audio is not None,
                voice=chat.audio.voice if chat.audio else None,
                latency_first=chat.latency_first,
                sampling=chat.sampling,
                tools=chat.tools.tools,
                tool_choice=chat.tools.choice,
                must_call=chat.tools.must_call,
            )
        )
        async with cancelled_with(request, response, self._limits.disconnect_poll_s):
            if chat.stream:
                return await self._stream(request, chat, response)
            return await self._whole(chat, response)

    async def _messages(self, chat: ChatRequest) -> tuple[Message, ...]:
        limits = self._limits
        drafts = await self._linked.fetched(chat.messages)

        def decode() -> tuple[Message, ...]:
            return decode_messages(drafts, max_bytes=limits.max_audio_bytes, max_seconds=limits.max_audio_seconds)

        return await self._work(decode) if has_media(drafts) else decode()

    async def _work(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *args)

    async def _whole(self, chat: ChatRequest, response: Response) -> web.Response:
        collected = await collect(response)
        shape = ReplyShape(self._cascade.model)
        extra: dict[str, Any] = {}
        if chat.metadata is not None:
            extra["metadata"] = chat.metadata
        if chat.details:
            extra["details"] = details_object(collected.finished, collected.heard)
        parser = CallParser(chat.tools.names)
        found = [*parser.push(collected.text), *parser.finish()]
        text = "".join(part for part in found if isinstance(part, str))
        calls = [part for part in found if isinstance(part, ToolCall)]
        if chat.audio is None or (calls and not text.strip()):
            message = {"content": text or None if calls else text}
            return json_response(shape.completion(message, collected.finished, calls, **extra))
        audio_id, fmt = self._store.new_id(), chat.audio.format

        def render(expires_at: int) -> bytes:
            data = base64.b64encode(whole_file(collected.pcm, fmt, self._signer)).decode("ascii")
            audio = {"id": audio_id, "data": data, "expires_at": expires_at, "transcript": text}
            return msgspec.json.encode(shape.completion({"audio": audio}, collected.finished, calls, **extra))

        return json_response(await self._work(render, self._store.put(audio_id, text)))

    async def _stream(self, request: web.Request, chat: ChatRequest, response: Response) -> web.StreamResponse:
        events = aiter(response)
        # The first event decides between an error with its own status and a stream that has begun well.
        first = await anext(events, None)
        reply = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        try:
            await reply.prepare(request)
            async for piece in self._pieces(chat, first, events):
                async with asyncio.timeout(self._limits.write_timeout_s):
                    await reply.write(piece)
            await reply.write_eof()
        except TimeoutError:
            # The reader stands still; there is no way left to tell it anything.
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # The reader is gone, which is its right. cancelled_with() stops the stages.
        return reply

    @staticmethod
    def _said(chat: ChatRequest, shape: ReplyShape, part: str | ToolCall, calls: int, transcript: list[str]) -> bytes:
        """A chunk of text, noted in ``transcript``, or the newest of ``calls`` calls."""
        if isinstance(part, ToolCall):
            return shape.tool_call(part, calls - 1)
        transcript.append(part)
        return shape.text(part) if chat.audio is None else shape.transcript(part)

    async def _pieces(self, chat: ChatRequest, first: Event | None, rest: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        """The server-sent events of a reply. A failure is the last of them."""
        shape = ReplyShape(self._cascade.model, include_usage=chat.include_usage)
        audio_id = self._store.new_id()
        heard: tuple[str, ...] = ()
        transcript: list[str] = []
        parser, calls = CallParser(chat.tools.names), 0
        yield shape.role()
        if chat.audio is not None:
            yield shape.audio_id(audio_id)
        try:
            async for event in chained(first, rest):
                match event:
                    case Heard():
                        heard = event.transcripts
                    case TextDelta():
                        for part in parser.push(event.text):
                            calls += isinstance(part, ToolCall)
                            yield self._said(chat, shape, part, calls, transcript)
                    case AudioDelta() if chat.audio is not None and event.pcm.size:
                        yield shape.sound(event.pcm)
                    case Finished():
                        check_finished(event)
                        for part in parser.finish():
                            calls += isinstance(part, ToolCall)
                            yield self._said(chat, shape, part, calls, transcript)
                        if chat.audio is not None:
                            yield shape.audio_end(self._store.put(audio_id, "".join(transcript)))
                        details = {"details": details_object(event, heard)} if chat.details else {}
                        yield shape.finish(event, called=calls > 0, **details)
                        if chat.include_usage:
                            yield shape.usage(event)
                        yield DONE
                        return
            raise no_end()
        except CascadeError as error:
            yield sse(from_cascade(error).body())
        except ApiError as error:
            yield sse(error.body())
        except Exception:
            # As error_middleware() does, but it is too late for a reply with a status of its own.
            log.exception("A stream failed")
            yield sse(internal_error().body())


def whole_file(pcm: Pcm, fmt: str, signer: FileSigner | None) -> bytes:
    """A file of one of :data:`voicechat.media.encode.FORMATS`, signed where it can be. CPU-bound."""
    data = encode(pcm, fmt)
    return data if signer is None or fmt not in signer.formats else signer.sign(data, fmt)


async def collect(response: Response) -> Collected:
    """Take in a response to its end. Raises :class:`CascadeError`, or :class:`ApiError` if it was cancelled."""
    text: list[str] = []
    pcm: list[Pcm] = []
    heard: tuple[str, ...] = ()
    async for event in response:
        match event:
            case Heard():
                heard = event.transcripts
            case TextDelta():
                text.append(event.text)
            case AudioDelta():
                pcm.append(event.pcm)
            case Finished():
                check_finished(event)
                sound = np.concatenate(pcm) if pcm else np.zeros(0, np.int16)
                return Collected("".join(text), sound, heard, event)
    raise no_end()


@contextlib.asynccontextmanager
async def cancelled_with(request: web.Request, response: Response, poll_s: float) -> AsyncIterator[None]:
    """Cancel ``response`` when the caller hangs up, or when the block is left before the response has ended.

    aiohttp tells handlers of a lost connection only when they write, so the connection is looked at every ``poll_s``,
    for want of anything to wait on.
    """

    async def watch() -> None:
        while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(poll_s)
        response.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        response.cancel()


async def chained(first: Event | None, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """``first``, if it is an event, then the rest."""
    if first is not None:
        yield first
        async for event in rest:
            yield event


def check_finished(event: Finished) -> None:
    """A cancelled response is no reply: either nobody listens any more, or the server is about to stop."""
    if event.reason is FinishReason.CANCELLED:
        raise ApiError(503, "The response was cancelled by the server.", kind=SERVER, code="cancelled")


def no_end() -> StageFailed:
    """The error for events that stop without the last one."""
    return StageFailed("cascade", "The response ended without a result.")
