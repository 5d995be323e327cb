"""The brain in the Thinker's place: what the coordinator sees of it is a stage, what it does is talk HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from voicechat.brain.endpoint import End, Endpoint
from voicechat.brain.errors import BrainError
from voicechat.brain.reply import Counts, MalformedReply, Reply
from voicechat.brain.request import Dialect, completion_body
from voicechat.contract import logs
from voicechat.contract.messages import Abort, Called, Generate, Message, Piece, Released, Turn, Written

log = logging.getLogger(__name__)

LINGER_S = 2.0
"""How long an endpoint that has said why its reply ends may still take to send counts."""
PROBE_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds between looks for an endpoint that can't be reached; the last one for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainOptions:
    """Where the brain is and how it is asked; the times are bounds in seconds.

    ``max_tokens`` is for requests that do not say, None leaves it to the endpoint. ``system_prompt`` is the system turn
    when the caller gives none.
    """

    url: str
    model: str
    api_key: str | None
    system_prompt: str
    max_tokens: int | None
    connect_timeout: float
    first_token_timeout: float
    idle_timeout: float


class BrainStage:
    """Takes and sends the messages of the Thinker's stage, on the server's own event loop. Never dies."""

    def __init__(
        self,
        options: BrainOptions,
        *,
        on_message: Callable[[Message], None],
        on_death: Callable[[Any, str], None],
    ) -> None:
        self.name = "brain"
        self.facts: dict[str, str | int | float] = {}
        self.worked = True
        self.diagnosis: str | None = None
        self.last_words: tuple[str, ...] = ()
        self._options = options
        self._on_message = on_message
        self._endpoint: Endpoint | None = None
        self._dialect = Dialect()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._up = False
        self._reachable = False
        self._looking: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """True once the endpoint has been reached. Later it is asked each time, whether or not it answered last."""
        return self._up

    @property
    def alive(self) -> bool:
        """True from start to stop."""
        return self._endpoint is not None

    @property
    def state(self) -> str:
        """For health reports: ``up``, ``unreachable`` or ``down``."""
        if self._endpoint is None:
            return "down"
        return "up" if self._reachable else "unreachable"

    @property
    def buried(self) -> bool:
        """Nothing of it writes into the pool."""
        return True

    @property
    def pid(self) -> None:
        """It has no process."""
        return

    async def start(self) -> None:
        """Wait until the endpoint answers. Raises RuntimeError if it refuses the key or does not know the model."""
        self.open()
        try:
            await self._look()
        except BrainError as error:
            await self.stop()
            raise RuntimeError(f"{error} (brain.url is {self._options.url})") from None
        self._up = True

    def open(self) -> None:
        """Make the session, without a look at the endpoint."""
        options = self._options
        self._endpoint = Endpoint(options.url, options.model, options.api_key, options.connect_timeout)

    async def stop(self) -> None:
        """Close every request, and then the connections."""
        self._up = self._reachable = False
        tasks = [*self._running.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.close()

    def send(self, message: Message) -> None:
        """Take a message for the Thinker; sounds are not for it."""
        match message:
            case Generate() if self._endpoint is not None:
                work = self._generate(self._endpoint, message)
                task = asyncio.get_running_loop().create_task(work, name=f"brain-{message.id}")
                self._running[message.id] = task
                task.add_done_callback(functools.partial(self._ended, message.id))
            case Abort():
                if (task_to_stop := self._running.get(message.id)) is not None:
                    task_to_stop.cancel()

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        """The end of every request, also of one that was cancelled before its first step."""
        del self._running[number]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("asking the brain failed", exc_info=error)
        self._on_message(Released(number, 0))

    async def _generate(self, endpoint: Endpoint, message: Generate) -> None:
        try:
            await self._converse(endpoint, message)
        except BrainError as error:
            told = f"{error} {error.detail}" if logs.content() or error.kind == "unreachable" else error.kind
            log.warning("request %d: %s (brain.url %s)", message.id, told, self._options.url)
            if error.kind == "unreachable":
                self._lost()
            self._on_message(error.failed(message.id))

    async def _converse(self, endpoint: Endpoint, message: Generate) -> None:
        options = self._options

        async def read(body: dict[str, Any]) -> None:
            await self._read(endpoint, message.id, body)

        await self._in_dialect(
            read,
            lambda dialect: completion_body(
                message,
                options.model,
                system_prompt=options.system_prompt,
                max_tokens=options.max_tokens,
                dialect=dialect,
            ),
        )

    async def _in_dialect(
        self, use: Callable[[dict[str, Any]], Awaitable[None]], make: Callable[[Dialect], dict[str, Any]]
    ) -> None:
        """Ask with a body; if the endpoint does not understand a field of ours, in a milder dialect from then on."""
        while True:
            dialect = self._dialect
            try:
                await use(make(dialect))
                return
            except BrainError as error:
                milder = dialect.milder(str(error)) if error.kind == "invalid" else None
                if milder is None:
                    raise
                log.info("the brain does not take %s", dialect)
                self._dialect = milder

    async def _read(self, endpoint: Endpoint, number: int, body: dict[str, Any]) -> None:
        """Pass a reply on as it comes."""
        loop, options, reply = asyncio.get_running_loop(), self._options, Reply()
        over = False
        try:
            async with (
                asyncio.timeout(options.first_token_timeout) as bound,
                contextlib.aclosing(endpoint.stream(body)) as objects,
            ):
                async for value in objects:
                    self._reachable = True
                    if over:
                        continue  # to the end, so that the connection can be used again
                    if value is not End.DONE:
                        self._say(number, reply.take(value))
                    if value is End.DONE or (reply.reason is not None and reply.counts is not None):
                        self._close(number, reply)
                        over = True
                    if over or reply.reason is not None:
                        bound.reschedule(loop.time() + LINGER_S)
                    elif reply.begun:
                        bound.reschedule(loop.time() + options.idle_timeout)
        except TimeoutError:
            if reply.reason is None and not over:
                what = "fell silent in the middle of its reply" if reply.begun else "did not answer in time"
                raise BrainError(f"The brain {what}. Please try again.") from None
        except MalformedReply as error:
            raise BrainError(f"The brain sent a reply that can't be read: {error}.") from None
        except BrainError:
            if not over:
                raise
        if not over:
            if reply.reason is None:
                raise BrainError("The brain broke off in the middle of its reply. Please try again.")
            self._close(number, reply)

    def _say(self, number: int, text: str) -> None:
        if text:
            self._on_message(Piece(number, (text,), time.monotonic_ns()))

    def _close(self, number: int, reply: Reply) -> None:
        self._say(number, reply.rest())
        if calls := reply.calls():
            self._on_message(Called(number, tuple(calls)))
        counts = reply.counts or Counts(completion=reply.pieces)
        reason = "length" if reply.reason == "length" else "stop"
        self._on_message(Written(number, reason, counts.prompt, counts.cached, counts.completion))

    # ---- whether it is there

    def _lost(self) -> None:
        """A request did not reach the endpoint: look for it, so that health reports tell when it is back."""
        self._reachable = False
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_again(), name="brain-look")

    async def _look_again(self) -> None:
        try:
            await self._look()
        except BrainError as error:
            log.error("the brain is back, but refuses: %s", error)

    async def _look(self) -> None:
        """Return once the endpoint answers. Raises :class:`BrainError` if a setting is wrong."""
        shown = ""
        for attempt in range(1 << 62):
            try:
                await self.check()
            except BrainError as error:
                if error.lasting or error.kind == "invalid":
                    raise
                if str(error) != shown:
                    shown = str(error)
                    log.warning("waiting for the brain at %s: %s %s", self._options.url, shown, error.detail)
            else:
                self._reachable = True
                return
            await asyncio.sleep(PROBE_PAUSES[min(attempt, len(PROBE_PAUSES) - 1)])

    async def check(self) -> None:
        """Does the endpoint answer, and know the model? A list of models is enough; else it writes one token.

        Raises :class:`BrainError` if not.
        """
        assert self._endpoint is not None
        options = self._options
        try:
            async with asyncio.timeout(options.first_token_timeout):
                listed = await self._endpoint.models()
                if listed is not None and options.model in listed:
                    return
                question = Generate(0, (Turn("user", "Hi"),), rows=False, max_tokens=1)
                await self._probe(self._endpoint, question)
        except TimeoutError:
            raise BrainError("The brain did not answer in time.") from None

    async def _probe(self, endpoint: Endpoint, question: Generate) -> None:
        async def drain(body: dict[str, Any]) -> None:
            async for _ in endpoint.stream(body):
                pass

        await self._in_dialect(
            drain,
            lambda dialect: completion_body(
                question, self._options.model, system_prompt="Answer.", max_tokens=1, dialect=dialect
            ),
        )


def look(options: BrainOptions) -> BrainError | None:
    """Ask the endpoint once whether it answers and knows the model; None if so. For a program without a loop."""

    async def check() -> BrainError | None:
        stage = BrainStage(options, on_message=lambda message: None, on_death=lambda stage, how: None)
        stage.open()
        try:
            await stage.check()
        except BrainError as error:
            return error
        finally:
            await stage.stop()
        return None

    return asyncio.run(check())
