"""Ears elsewhere: an OpenAI-compatible endpoint hears in the place of the ears' stage."""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import numpy as np

from voicechat.brain.errors import BrainError, refusal
from voicechat.contract.hearing import HeardToken, HeardWord, HearingOptions, Transcription
from voicechat.contract.messages import Abort, Failed, Message, Transcribe, Transcript
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.sound import EARS_RATE, EarsPcm

log = logging.getLogger(__name__)

MAX_ANSWER = 1 << 22
CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEarsOptions:
    """``url`` ends in ``/v1`` or the like; ``timeout`` in seconds bounds an answer; ``language`` is for sounds of which
    nobody says what it is."""

    url: str
    model: str
    api_key: str | None
    language: str | None
    timeout: float


class RemoteEars:
    """Takes and sends the messages of the ears' stage, on the server's own event loop. Never dies.

    ``settle`` says what of a hearing may be passed on.
    """

    def __init__(
        self,
        options: RemoteEarsOptions,
        pool: PoolSpec,
        settle: Callable[[Transcription, EarsPcm], Transcription],
        *,
        on_message: Callable[[Message], None],
        on_death: Callable[[Any, str], None],
    ) -> None:
        self.name = "ears"
        self.facts: dict[str, str | int | float] = {}
        self._options = options
        self._spec = pool
        self._settle = settle
        self._pool: Pool | None = None
        self._on_message = on_message
        self._session: aiohttp.ClientSession | None = None
        self._running: dict[int, asyncio.Task[None]] = {}

    @property
    def up(self) -> bool:
        """True from start to stop: the endpoint is asked each time, whether or not it answered last."""
        return self._session is not None

    @property
    def alive(self) -> bool:
        """As :attr:`up`."""
        return self.up

    @property
    def state(self) -> str:
        """For health reports."""
        return "up" if self.up else "down"

    @property
    def pid(self) -> int | None:
        """It has no process."""
        return None

    @property
    def buried(self) -> bool:
        """No process of it can write into the pool."""
        return True

    @property
    def worked(self) -> bool:
        """It never dies of a request."""
        return True

    @property
    def diagnosis(self) -> str | None:
        """It never dies."""
        return None

    @property
    def last_words(self) -> tuple[str, ...]:
        """It has no standard error."""
        return ()

    async def start(self) -> None:
        """Ask for silence to be heard. Raises RuntimeError if a setting is wrong; an endpoint that does not answer
        may come later."""
        self._pool = Pool(self._spec)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._options.timeout, sock_connect=CONNECT_S),
            headers={"Authorization": f"Bearer {self._options.api_key}"} if self._options.api_key else {},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        try:
            await self._ask(np.zeros(EARS_RATE, np.float32), HearingOptions())
        except BrainError as error:
            if error.lasting:
                await self.stop()
                raise RuntimeError(f"{error} (ears.url is {self._options.url})") from None
            log.warning("the ears at %s: %s %s", self._options.url, error, error.detail)

    async def stop(self) -> None:
        """Close every request, and then the connections."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        session, pool = self._session, self._pool
        self._session = self._pool = None
        if session is not None:
            await session.close()
        if pool is not None:
            pool.close()

    def send(self, message: Message) -> None:
        """Take a message for the ears."""
        match message:
            case Transcribe() if self._pool is not None:
                pcm = self._pool.bays[message.bay, : message.count].copy()
                task = asyncio.get_running_loop().create_task(self._hear(message, pcm), name=f"ears-{message.id}")
                self._running[message.id] = task
                task.add_done_callback(functools.partial(self._ended, message.id))
            case Abort():
                if (running := self._running.get(message.id)) is not None:
                    running.cancel()

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._running[number]
        if task.cancelled():
            self._on_message(Failed(number, "the transcription was cancelled"))
        elif (error := task.exception()) is not None:
            log.error("asking the ears failed", exc_info=error)
            self._on_message(Failed(number, "the sound could not be heard"))

    async def _hear(self, message: Transcribe, pcm: EarsPcm) -> None:
        begun = time.monotonic()
        try:
            heard = await self._ask(pcm, message.options)
        except BrainError as error:
            log.warning("sound %d: %s (ears.url %s) %s", message.id, error, self._options.url, error.detail)
            self._on_message(error.failed(message.id))
        else:
            self._on_message(Transcript(message.id, heard, time.monotonic() - begun))

    async def _ask(self, pcm: EarsPcm, options: HearingOptions) -> Transcription:
        """Raises :class:`BrainError`."""
        assert self._session is not None
        path = "translations" if options.translate else "transcriptions"
        url = f"{self._options.url}/audio/{path}"
        try:
            async with self._session.post(url, data=self._form(pcm, options), allow_redirects=False) as response:
                body = await response.content.read(MAX_ANSWER)
                if response.status != 200:
                    raise _named(refusal(response.status, response.headers, body, self._options.model))
        except TimeoutError:
            raise BrainError("The ears did not answer in time. Please try again.", "unreachable") from None
        except aiohttp.ClientError as error:
            detail = str(error) or type(error).__name__
            message = "The ears can't be reached. Try again in a moment."
            raise BrainError(message, "unreachable", detail=detail) from error
        return self._settle(_read(body), pcm)

    def _form(self, pcm: EarsPcm, options: HearingOptions) -> aiohttp.FormData:
        form = aiohttp.FormData()
        fields = {
            "model": self._options.model,
            "response_format": "verbose_json" if options.words else "json",
            "language": None if options.translate else options.language or self._options.language,
            "prompt": options.prompt,
            "temperature": f"{options.temperature:g}" if options.temperature else None,
            "timestamp_granularities[]": "word" if options.words else None,
            "include[]": "logprobs" if options.tokens and not options.words else None,
        }
        for name, value in fields.items():
            if value:
                form.add_field(name, value)
        form.add_field("file", _wav(pcm), filename="sound.wav", content_type="audio/wav")
        return form


def _named(error: BrainError) -> BrainError:
    """The same of the ears."""
    words = str(error).replace("The brain", "The ears").replace("to chat with", "to hear with")
    return BrainError(
        words,
        error.kind,
        lasting=error.lasting,
        retry_after=error.retry_after,
        param=error.param,
        code=error.code,
        detail=error.detail,
    )


def _wav(pcm: EarsPcm) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(EARS_RATE)
        file.writeframes(np.clip(np.rint(pcm * 32767), -32768, 32767).astype("<i2").tobytes())
    return data.getvalue()


def _read(body: bytes) -> Transcription:
    """What an answer says. Raises :class:`BrainError` for one that is none."""
    try:
        answer = msgspec.json.decode(body)
        return Transcription(
            str(answer["text"]).strip(),
            words=tuple(
                HeardWord(str(word["word"]).strip(), float(word["start"]), float(word["end"]))
                for word in answer.get("words") or ()
            ),
            tokens=tuple(
                HeardToken(str(token["token"]), float(token["logprob"])) for token in answer.get("logprobs") or ()
            ),
        )
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrainError(f"The ears sent an answer that can't be read: {error!r}.") from None
