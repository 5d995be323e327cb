"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: what is said in a file, in any of OpenAI's formats.

The file goes to disk as it comes, and is decoded, searched for speech and heard piece by piece, so that memory does not
grow with it. Its pieces are heard in the background: conversations go first at the ears, and while there are some the
pieces are short, so that a turn never waits for a long one.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import CascadeError
from voicechat.contract.hearing import HeardToken, Transcription
from voicechat.contract.provenance import CannotCheck
from voicechat.contract.sound import EARS_RATE
from voicechat.faces import subtitles
from voicechat.faces.chat_reply import sse
from voicechat.faces.errors import SERVER, ApiError, from_cascade, internal_error, json_response
from voicechat.faces.metered import Metered
from voicechat.faces.operation import JSON, SSE, TEXT, Operation, Reply, array, documented, events, one_of, struct
from voicechat.faces.subtitles import Spoken
from voicechat.faces.transcription_request import FIELDS, FORMATS, Task, TranscriptionRequest, parse_form
from voicechat.faces.upload import ROOM, in_time, is_gone, receive_form, too_large, unless_gone
from voicechat.media.silero import Silero
from voicechat.media.speech_pieces import SpeechPiece, SpeechReader

log = logging.getLogger(__name__)

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
LONG_PIECE_S, SHORT_PIECE_S = 24.0, 9.0
"""Most seconds of a piece while nobody converses, and while somebody does."""
AUDIO_TOKENS_PER_S = 10
"""As OpenAI bills sound that is transcribed."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """``max_files``: inside at once, those that come included; ``upload_s``: seconds in which one must have come."""

    max_bytes: int = 512 << 20
    max_seconds: float = 8 * 3600.0
    max_files: int = 4
    upload_s: float = 600.0
    disconnect_poll_s: float = 0.2


@dataclass(slots=True)
class _Work:
    """A file that is being heard. ``seconds``: of its sound, as far as it was read."""

    asked: TranscriptionRequest
    reader: SpeechReader
    spoken: list[Spoken] = field(default_factory=list)
    seconds: float = 0.0


def _operation(task: Task) -> Callable[[ModelInfo], Operation]:
    def made(model: ModelInfo) -> Operation:
        number = {"type": "number"}
        usage = struct({"type": one_of(("tokens", "duration"))}, ("type",), more=True)
        verbose = struct({"text": TEXT, "language": TEXT, "duration": number, "task": TEXT}, ("text",), more=True)
        body = struct({"text": TEXT, "usage": usage}, ("text",), more=True)
        form = {
            "file": {"type": "string", "format": "binary"},
            "model": TEXT,
            "language": TEXT,
            "prompt": TEXT,
            "response_format": one_of(FORMATS),
            "temperature": {"type": "number", "minimum": 0, "maximum": 1},
            "timestamp_granularities[]": array(one_of(("word", "segment"))),
            "include[]": array(one_of(("logprobs",))),
            "stream": {"type": "boolean"},
        }
        event = struct({"type": TEXT}, ("type",), more=True)
        return Operation(
            "What is said in a file" if task == "transcribe" else "What is said in a file, in English",
            {200: Reply("The text.", {JSON: {"anyOf": [body, verbose]}, "text/plain": TEXT, SSE: events(event)})},
            errors=(400, 404, 408, 413, 415, 429, 503),
            body={"multipart/form-data": struct(form, ("file", "model"), more=True)},
        )

    return made


class TranscriptionFace:
    """The handlers of both routes. ``in_conversation``: whether anybody talks to the server now."""

    def __init__(
        self,
        cascade: Metered,
        limits: FileLimits,
        *,
        silero: Silero | None,
        in_conversation: Callable[[], bool],
        write_timeout_s: float,
    ) -> None:
        self._cascade = cascade
        self._limits = limits
        self._silero = silero
        self._in_conversation = in_conversation
        self._write_timeout_s = write_timeout_s
        self._inside = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="files")

    def setup(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post(TRANSCRIPTIONS, self.transcribe)
        app.router.add_post(TRANSLATIONS, self.translate)

        async def close(_: web.Application) -> None:
            self._thread.shutdown(wait=False, cancel_futures=True)

        app.on_cleanup.append(close)

    @documented(_operation("transcribe"))
    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        """Answer one request for the text as it was said."""
        return await self._answer(request, "transcribe")

    @documented(_operation("translate"))
    async def translate(self, request: web.Request) -> web.StreamResponse:
        """Answer one request for the text in English."""
        return await self._answer(request, "translate")

    async def _answer(self, request: web.Request, task: Task) -> web.StreamResponse:
        if request.content_type != "multipart/form-data":
            message = "Send the file as multipart/form-data, in the field 'file'."
            raise ApiError(415, message, code="unsupported_content_type")
        limits = self._limits
        if (request.content_length or 0) > limits.max_bytes + ROOM:
            raise too_large(limits.max_bytes)
        if self._inside >= limits.max_files:
            message = "As many files are being transcribed as may be. Try again in a moment."
            raise ApiError(503, message, kind=SERVER, code="overloaded", headers={"Retry-After": "5"})
        self._inside += 1
        try:
            with self._cascade.listening(), tempfile.TemporaryDirectory(prefix="voicechat-hear-") as folder:
                path = Path(folder) / "file"
                form = await in_time(receive_form(request, path, limits.max_bytes, FIELDS), limits.upload_s)
                asked = parse_form(form, task, self._cascade.model)
                work = _Work(asked, SpeechReader(path, self._silero, max_s=limits.max_seconds))
                if asked.stream:
                    return await self._stream(request, work)
                return await unless_gone(request, self._whole(work), limits.disconnect_poll_s)
        finally:
            self._inside -= 1

    async def _whole(self, work: _Work) -> web.Response:
        try:
            async for _ in self._pieces(work):
                pass
        except CascadeError as error:
            raise from_cascade(error, {}) from None
        return _reply(work)

    async def _stream(self, request: web.Request, work: _Work) -> web.StreamResponse:
        """Server-sent events. What fails before the first piece has a status of its own, later it is the last event."""
        pieces = self._pieces(work)
        try:
            first = await anext(pieces, None)
        except CascadeError as error:
            raise from_cascade(error, {}) from None
        headers = {"Content-Type": f"{SSE}; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        reply = web.StreamResponse(headers=headers)
        try:
            await reply.prepare(request)
            async for event in _events(work, first, pieces):
                async with asyncio.timeout(self._write_timeout_s):
                    await reply.write(event)
                if is_gone(request):
                    break
            await reply.write_eof()
        except (ConnectionError, TimeoutError):
            pass  # the reader is gone or stands still
        finally:
            await pieces.aclose()
        return reply

    async def _pieces(self, work: _Work) -> AsyncGenerator[Spoken, None]:
        """Hear the file, piece by piece; those in which nobody spoke are left out. Raises :class:`CascadeError`."""
        loop, reader = asyncio.get_running_loop(), work.reader
        try:
            while not reader.over:
                most = SHORT_PIECE_S if self._talking() else LONG_PIECE_S
                piece = await loop.run_in_executor(self._thread, functools.partial(reader.step, most))
                self._pay(work)
                if piece is not None and (spoken := await self._hear(piece, work.asked)) is not None:
                    work.spoken.append(spoken)
                    yield spoken
        except CannotCheck as reason:
            status = 413 if reason.code == "too_large" else 400
            message = str(reason)
            if reason.code == "too_large":
                message = f"The sound is too long: at most {self._limits.max_seconds / 60:g} minutes are heard."
            raise ApiError(status, message, param="file", code=reason.code) from None
        finally:
            await loop.run_in_executor(self._thread, reader.close)

    async def _hear(self, piece: SpeechPiece, asked: TranscriptionRequest) -> Spoken | None:
        heard = await self._cascade.hear(piece.pcm, asked.options)
        return Spoken(piece.begin_s, piece.begin_s + len(piece.pcm) / EARS_RATE, heard) if heard.text else None

    def _pay(self, work: _Work) -> None:
        """All sound of the file is paid for, pauses too."""
        self._cascade.listened(work.reader.seconds - work.seconds)
        work.seconds = work.reader.seconds

    def _talking(self) -> bool:
        return self._in_conversation() or self._cascade.live > self._inside


async def _events(work: _Work, first: Spoken | None, rest: AsyncIterator[Spoken]) -> AsyncIterator[bytes]:
    """A piece's text with its first event, then the others', and the whole; a failure is the last of them."""
    sent = False
    try:
        piece = first
        while piece is not None:
            delta: dict[str, Any] = {"type": "transcript.text.delta", "delta": f"{' ' * sent}{piece.heard.text}"}
            if work.asked.logprobs:
                delta["logprobs"] = _logprobs([piece.heard])
            yield sse(delta)
            sent = True
            piece = await anext(rest, None)
        done: dict[str, Any] = {"type": "transcript.text.done", "text": subtitles.whole_text(work.spoken)}
        if work.asked.logprobs:
            done["logprobs"] = _logprobs([each.heard for each in work.spoken])
        yield sse({**done, "usage": _usage(work, by_tokens=True)})
    except CascadeError as error:
        yield sse({"type": "error", **from_cascade(error, {}).body()})
    except ApiError as error:
        yield sse({"type": "error", **error.body()})
    except Exception:
        # As error_middleware() does, but it is too late for a reply with a status of its own.
        log.exception("A transcription's stream failed")
        yield sse({"type": "error", **internal_error().body()})


def _reply(work: _Work) -> web.Response:
    asked = work.asked
    match asked.format:
        case "text":
            return web.Response(text=f"{subtitles.whole_text(work.spoken)}\n")
        case "srt":
            return web.Response(text=subtitles.srt(work.spoken))
        case "vtt":
            return web.Response(text=subtitles.vtt(work.spoken))
        case "verbose_json":
            body = subtitles.verbose(
                work.spoken,
                task=asked.task,
                duration_s=work.seconds,
                granularities=asked.granularities,
                temperature=asked.options.temperature,
            )
        case _:
            body = {"text": subtitles.whole_text(work.spoken)}
            if asked.logprobs:
                body["logprobs"] = _logprobs([each.heard for each in work.spoken])
    return json_response({**body, "usage": _usage(work, by_tokens=asked.by_tokens and asked.format == "json")})


def _usage(work: _Work, *, by_tokens: bool) -> dict[str, Any]:
    if not by_tokens:
        return {"type": "duration", "seconds": math.ceil(work.seconds)}
    audio = math.ceil(work.seconds * AUDIO_TOKENS_PER_S)
    made = sum(each.heard.written for each in work.spoken)
    return {
        "type": "tokens",
        "input_tokens": audio,
        "input_token_details": {"audio_tokens": audio, "text_tokens": 0},
        "output_tokens": made,
        "total_tokens": audio + made,
    }


def _logprobs(heard: Sequence[Transcription]) -> list[dict[str, Any]]:
    tokens: list[HeardToken] = [token for each in heard for token in each.tokens]
    return [
        {"token": token.text, "logprob": token.log_probability, "bytes": list(token.text.encode())} for token in tokens
    ]
