"""``POST /v1/audio/speech``: a given text, spoken, in any format and at any speed, sent as it is made.

Sound goes out as the bytes of one growing file, or (``stream_format: sse``) as events with pieces of it. The reply
begins with the first sound: what fails before has a status of its own; what fails later breaks the transfer off, so
that no client takes half a file for a whole one, or is the last event.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
import re
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from aiohttp import web

from voicechat.contract.cascade import Cascade, ModelInfo, Response
from voicechat.contract.errors import CascadeError
from voicechat.contract.events import AudioDelta, Event, Finished
from voicechat.contract.logs import words_of
from voicechat.contract.provenance import FileSigner
from voicechat.contract.requests import SpeechRequest
from voicechat.contract.sound import MAX_SPEED, MIN_SPEED, Pcm
from voicechat.faces.body import read_json
from voicechat.faces.chat import cancelled_with, chained, check_finished, no_end, whole_file
from voicechat.faces.chat_reply import sse
from voicechat.faces.errors import ApiError, from_cascade, internal_error
from voicechat.faces.fields import Fields, bad_field
from voicechat.faces.models import no_such_model
from voicechat.faces.operation import (
    BINARY,
    ERROR,
    JSON,
    SSE,
    TEXT,
    Operation,
    Reply,
    Schema,
    documented,
    events,
    nullable,
    one_of,
    struct,
    whole,
)
from voicechat.faces.voices import read_voice, voice_schema
from voicechat.media.encode import FORMATS, stream_encoder

log = logging.getLogger(__name__)

PATH = "/v1/audio/speech"
MAX_INPUT = 4096
"""Longest text, in characters."""
MAX_INSTRUCTIONS = 4096
RESPONSE_FORMATS = {"mp3": "mp3", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "wav", "pcm": "pcm16"}
"""The formats by OpenAI's names for them here, which are not those of chat completions."""

_NAMES = (
    "input", "instructions", "latency_first", "model", "response_format", "seed", "speed", "stream_format", "voice",
)  # fmt: skip
_PARAMS: Mapping[str, str | None] = {"text": "input"}
_OPENAI_MODELS = re.compile(r"tts-1(-hd)?(-\d{4})?|gpt-4o-mini-tts(-\d{4}-\d{2}-\d{2})?")
"""OpenAI's names of speech models, which clients send by themselves; all mean the model that is served."""


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """A checked request; ``format`` is one of :data:`voicechat.media.encode.FORMATS`."""

    request: SpeechRequest
    format: str
    events: bool


def parse_speech(body: object, model: ModelInfo) -> SpeechOptions:
    """Check a JSON body. Raises :class:`ApiError` that names the first field that is wrong.

    ``instructions`` are read and change nothing: the voice is as it is, like that of OpenAI's ``tts-1``.
    """
    fields = Fields(body)
    fields.only(_NAMES)
    name = fields.need_string("model")
    if name != model.name and not _OPENAI_MODELS.fullmatch(name):
        raise no_such_model(name[:256])
    text = fields.need_string("input", max_length=MAX_INPUT)
    if not text.strip():
        message = "Invalid 'input': empty string. Expected a text that can be spoken."
        raise bad_field("input", message, "empty_string")
    voice = read_voice(fields, model)
    fields.string("instructions", max_length=MAX_INSTRUCTIONS)
    latency_first = fields.boolean("latency_first")
    return SpeechOptions(
        request=SpeechRequest(
            text=text,
            voice=voice,
            latency_first=True if latency_first is None else latency_first,
            seed=fields.integer("seed", -(2**63), 2**63 - 1),
            speed=fields.number("speed", MIN_SPEED, MAX_SPEED) or 1.0,
        ),
        format=RESPONSE_FORMATS[fields.choice("response_format", tuple(RESPONSE_FORMATS)) or "mp3"],
        events=fields.choice("stream_format", ("audio", "sse")) == "sse",
    )


_COUNT: Schema = {"type": "integer", "minimum": 0}
_USAGE = whole(dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), _COUNT))
_DELTA = whole({"type": {"const": "speech.audio.delta"}, "audio": TEXT})
_DONE = whole({"type": {"const": "speech.audio.done"}, "usage": _USAGE})
_FAILED = whole({"type": {"const": "error"}, **ERROR["properties"]})


def _operation(model: ModelInfo) -> Operation:
    kinds = sorted({FORMATS[name].media_type for name in RESPONSE_FORMATS.values()})
    models: Schema = {"anyOf": [one_of((model.name,)), {"type": "string", "pattern": f"^({_OPENAI_MODELS.pattern})$"}]}
    properties: dict[str, Schema] = {
        "model": models,
        "input": {"type": "string", "minLength": 1, "maxLength": MAX_INPUT, "pattern": "\\S"},
        "voice": voice_schema(model),
        "instructions": nullable({"type": "string", "maxLength": MAX_INSTRUCTIONS}),
        "latency_first": nullable({"type": "boolean"}),
        "response_format": nullable(one_of(tuple(RESPONSE_FORMATS))),
        "seed": nullable({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}),
        "speed": nullable({"type": "number", "minimum": MIN_SPEED, "maximum": MAX_SPEED}),
        "stream_format": nullable(one_of(("audio", "sse"))),
    }
    assert properties.keys() == set(_NAMES)
    return Operation(
        "A given text, spoken",
        {
            200: Reply(
                "The sound, sent as it is made; with `stream_format: sse` as events, of type `speech.audio.delta`, "
                "`speech.audio.done` or `error`.",
                {**dict.fromkeys(kinds, BINARY), SSE: events(_DELTA, _DONE, _FAILED)},
            )
        },
        errors=(400, 404, 413, 415),
        body={JSON: struct(properties, ("model", "input", "voice"))},
        examples={"short": {"model": model.name, "input": "Hello there.", "voice": model.default_voice}},
        description="A text in which nothing can be spoken is refused.",
    )


class SpeechFace:
    """The handler of the route; ``workers`` encode."""

    def __init__(
        self,
        cascade: Cascade,
        workers: Executor,
        *,
        write_timeout_s: float,
        disconnect_poll_s: float = 0.1,
        signer: FileSigner | None = None,
    ) -> None:
        self._cascade = cascade
        self._workers = workers
        self._write_timeout_s = write_timeout_s
        self._disconnect_poll_s = disconnect_poll_s
        self._signer = signer

    def setup(self, app: web.Application) -> None:
        """Add the route."""
        app.router.add_post(PATH, self.post)

    @documented(_operation)
    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        options = parse_speech(await read_json(request, self._workers), self._cascade.model)
        response = self._cascade.speak(options.request)
        async with cancelled_with(request, response, self._disconnect_poll_s):
            return await self._send(request, options, response)

    async def _send(self, request: web.Request, options: SpeechOptions, response: Response) -> web.StreamResponse:
        events = aiter(response)
        try:
            first = await _first_sound(events)
        except CascadeError as error:
            raise from_cascade(error, _PARAMS) from None
        media_type = "text/event-stream; charset=utf-8" if options.events else FORMATS[options.format].media_type
        headers = {"Content-Type": media_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        reply = web.StreamResponse(headers=headers)
        signed = self._signer is not None and options.format in self._signer.formats
        pieces = self._whole(options, first, events) if signed else self._pieces(options, first, events)
        try:
            await reply.prepare(request)
            async for piece in as_events(pieces, len(options.request.text)) if options.events else as_bytes(pieces):
                async with asyncio.timeout(self._write_timeout_s):
                    await reply.write(piece)
            await reply.write_eof()
        except ConnectionError:
            pass  # The reader is gone, which is its right. cancelled_with() stops the stages.
        except (TimeoutError, CascadeError, ApiError) as error:
            # The reader stands still, or the sound can't go on: the only thing left to tell is that this is no whole.
            log.info("speech was broken off: %s", words_of(error))
            _break_off(request)
        except Exception:
            # As error_middleware() does, but it is too late for a reply with a status of its own.
            log.exception("speech failed")
            _break_off(request)
        return reply

    async def _pieces(
        self, options: SpeechOptions, first: Event, rest: AsyncIterator[Event]
    ) -> AsyncIterator[bytes | Finished]:
        """The bytes of the file as they become certain, and at last the event that ends it."""
        loop = asyncio.get_running_loop()
        encoder = await loop.run_in_executor(self._workers, stream_encoder, options.format)
        async for event in chained(first, rest):
            match event:
                case AudioDelta() if event.pcm.size:
                    if piece := await loop.run_in_executor(self._workers, encoder.feed, event.pcm):
                        yield piece
                case Finished():
                    check_finished(event)
                    if piece := await loop.run_in_executor(self._workers, encoder.finish):
                        yield piece
                    yield event
                    return
        raise no_end()

    async def _whole(
        self, options: SpeechOptions, first: Event, rest: AsyncIterator[Event]
    ) -> AsyncIterator[bytes | Finished]:
        """As :meth:`_pieces`, in one piece with its signature, which is one over the whole file."""
        pcm: list[Pcm] = []
        async for event in chained(first, rest):
            match event:
                case AudioDelta():
                    pcm.append(event.pcm)
                case Finished():
                    check_finished(event)
                    sound = np.concatenate(pcm) if pcm else np.zeros(0, np.int16)
                    make = functools.partial(whole_file, sound, options.format, self._signer)
                    yield await asyncio.get_running_loop().run_in_executor(self._workers, make)
                    yield event
                    return
        raise no_end()


def _break_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _first_sound(events: AsyncIterator[Event]) -> Event:
    """The first event with sound, or the last event if there is none."""
    async for event in events:
        if isinstance(event, Finished):
            check_finished(event)
            return event
        if isinstance(event, AudioDelta) and event.pcm.size:
            return event
    raise no_end()


async def as_bytes(pieces: AsyncIterator[bytes | Finished]) -> AsyncIterator[bytes]:
    """Nothing but the file."""
    async for piece in pieces:
        if isinstance(piece, bytes):
            yield piece


async def as_events(pieces: AsyncIterator[bytes | Finished], characters: int) -> AsyncIterator[bytes]:
    """Server-sent events with the file in pieces, then one with the usage. A failure is the last of them.

    A character of the text counts as a token that went in, a step of 40 ms as one that came out.
    """
    try:
        async for piece in pieces:
            if isinstance(piece, bytes):
                yield sse({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode("ascii")})
            else:
                made = piece.usage.speech_tokens
                usage: dict[str, Any] = {
                    "input_tokens": characters,
                    "output_tokens": made,
                    "total_tokens": characters + made,
                }
                yield sse({"type": "speech.audio.done", "usage": usage})
    except CascadeError as error:
        yield sse({"type": "error", **from_cascade(error, _PARAMS).body()})
    except ApiError as error:
        yield sse({"type": "error", **error.body()})
    except Exception:
        # As error_middleware() does, but it is too late for a reply with a status of its own.
        log.exception("A speech stream failed")
        yield sse({"type": "error", **internal_error().body()})
