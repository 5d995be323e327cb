"""The cascade as the faces see it, with every response counted: for the metrics, and on its caller's account.

Who asks is known by the context in which :meth:`Metered.respond` is called: the middleware says it
(:func:`calling`), and tasks of a session inherit it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

from voicechat.contract import logs
from voicechat.contract.cascade import Cascade, ModelInfo, Response
from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, Overloaded, RateLimited, StageFailed
from voicechat.contract.events import AudioDelta, Event, Finished, Heard, StageTimes, TextDelta
from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription
from voicechat.contract.requests import ResponseRequest, SpeechRequest
from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm
from voicechat.faces.errors import too_many
from voicechat.faces.limits import Account
from voicechat.faces.metrics import Metrics
from voicechat.faces.tracing import ResponseSpans, Tracer, current_span

log = logging.getLogger(__name__)

_CALLERS: ContextVar[tuple[Account, ...]] = ContextVar("callers", default=())
_FACE: ContextVar[str] = ContextVar("face", default="other")
LONGEST_S = 600.0
"""No user waits longer for a reply; what says so is no measured time."""
_OUTCOMES: tuple[tuple[type[CascadeError], str], ...] = (
    (InvalidRequest, "invalid"),
    (RateLimited, "rate_limited"),
    (Overloaded, "overloaded"),
    (NotReady, "not_ready"),
    (StageFailed, "stage_failed"),
    (CascadeError, "error"),
)


def calling(face: str, accounts: tuple[Account, ...]) -> None:
    """What follows in this context is asked for by the owner of these accounts, through this face."""
    _FACE.set(face)
    _CALLERS.set(accounts)


def callers() -> tuple[Account, ...]:
    """The accounts of whoever asks in this context."""
    return _CALLERS.get()


class Metered:
    """A :class:`Cascade` around another one."""

    def __init__(
        self,
        cascade: Cascade,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        self._cascade = cascade
        self.tracer = tracer
        self.metrics = metrics
        self.clock = clock
        self.live = 0
        """Responses that have begun and not ended."""
        self.idle = asyncio.Event()
        """Set while there are none."""
        self.idle.set()

    @property
    def model(self) -> ModelInfo:
        """The served model."""
        return self._cascade.model

    @property
    def ready(self) -> bool:
        """True once every stage is warm and up."""
        return self._cascade.ready

    def respond(self, request: ResponseRequest) -> Response:
        """See :class:`Cascade`. A caller who has too many live replies gets :class:`RateLimited`."""
        return self._metered(lambda: self._cascade.respond(request))

    def speak(self, request: SpeechRequest) -> Response:
        """See :class:`Cascade`, and :meth:`respond`."""
        return self._metered(lambda: self._cascade.speak(request))

    async def transcribe(self, pcm: EarsPcm) -> str:
        """See :class:`Cascade`."""
        text = await self._cascade.transcribe(pcm)
        if logs.content():
            log.info("the user says %r", text)
        self.listened(len(pcm) / EARS_RATE)
        return text

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        """See :class:`Cascade`. What is heard in the background is paid for by :meth:`listened`, pauses included."""
        heard = await self._cascade.hear(pcm, options)
        if logs.content():
            log.info("somebody says %r", heard.text)
        if not options.background:
            self.listened(len(pcm) / EARS_RATE)
        return heard

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While a file is heard: it counts as a reply that is live.

        Raises :class:`~voicechat.faces.errors.ApiError` if its caller has too many, or has used up its sound.
        """
        accounts = _CALLERS.get()
        for account in accounts:
            if (refusal := account.reply(self.clock())) is not None:
                self.metrics.rejections.labels(refusal.what).inc()
                raise too_many(refusal.message, refusal.wait, what=refusal.what)
        self.count(accounts, 1)
        try:
            yield
        finally:
            self.count(accounts, -1)

    def listened(self, seconds: float) -> None:
        """So much sound has been heard for whoever asks in this context."""
        self.metrics.audio.labels("transcribed").inc(seconds)
        for account in _CALLERS.get():
            account.heard(seconds, self.clock())

    def _metered(self, begin: Callable[[], Response]) -> Response:
        accounts = _CALLERS.get()
        for account in accounts:
            if (refusal := account.reply(self.clock())) is not None:
                self.metrics.rejections.labels(refusal.what).inc()
                return _Refused(RateLimited(refusal.message, retry_after=refusal.wait))
        return _Counted(begin(), self, accounts, _FACE.get())

    def on_server_event(self, event: Mapping[str, Any]) -> None:
        """Count what an event of a realtime session says of its turns."""
        match event["type"]:
            case "input_audio_buffer.committed":
                self.metrics.turns.labels("committed").inc()
            case "input_audio_buffer.cleared":
                self.metrics.turns.labels("discarded").inc()
            case "response.done":
                response = event["response"]
                if (response.get("status_details") or {}).get("reason") == "turn_detected":
                    self.metrics.barge_ins.inc()
                if (seconds := _voice_to_voice(response.get("metadata") or {})) is not None:
                    self.metrics.voice_to_voice.observe(seconds)

    def count(self, accounts: tuple[Account, ...], change: int) -> None:
        """A response has begun (1) or ended (-1)."""
        self.live += change
        if self.live:
            self.idle.clear()
        else:
            self.idle.set()
        for account in accounts:
            account.live_replies += change


def _voice_to_voice(metadata: Mapping[str, str]) -> float | None:
    """Seconds, by the times that a session notes in a response's metadata; the client's own notes are there too."""
    sound, silence = metadata.get("first_sound_ms", metadata.get("first_audio_ms")), metadata.get("endpointing_ms")
    if sound is None or silence is None or not (sound.isdecimal() and silence.isdecimal()):
        return None
    seconds = (int(sound) + int(silence)) / 1000
    return seconds if seconds < LONGEST_S else None


class _Refused:
    """A response that never began."""

    id = "refused"

    def __init__(self, error: CascadeError) -> None:
        self._error = error

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        raise self._error

    def cancel(self) -> None:
        """Nothing runs."""


class _Counted:
    """A response whose events are counted as they pass."""

    def __init__(self, inner: Response, metered: Metered, accounts: tuple[Account, ...], face: str) -> None:
        self.id = inner.id
        self._inner = inner
        self._metered = metered
        self._metrics = metered.metrics
        self._accounts = accounts
        self._face = face
        self._clock = metered.clock
        self._began = metered.clock()
        parent = current_span()
        self._spans = None if parent is None else ResponseSpans(parent, face)
        self._said: list[str] | None = [] if logs.content() else None
        metered.count(accounts, 1)
        self._live = True

    def __del__(self) -> None:
        self._leave()  # nobody has ever iterated

    def cancel(self) -> None:
        """Stop it."""
        self._inner.cancel()

    async def __aiter__(self) -> AsyncIterator[Event]:
        heard, due, gap, paid = 0.0, 0.0, 0.0, False
        try:
            async for event in self._inner:
                if isinstance(event, AudioDelta):
                    now = self._clock()
                    if not heard:
                        self._metrics.first_audio.labels(self._face).observe(now - self._began)
                        due = now
                    gap += max(0.0, now - due)
                    due = max(due, now) + len(event.pcm) / PCM_RATE
                    heard += len(event.pcm) / PCM_RATE
                elif isinstance(event, Finished):
                    self._finished(event, heard, gap)
                    paid = True
                elif self._said is not None:
                    self._note(event, self._said)
                yield event
        except CascadeError as error:
            outcome = next(name for kind, name in _OUTCOMES if isinstance(error, kind))
            self._metrics.responses.labels(self._face, outcome).inc()
            if self._spans is not None:
                self._spans.failed(outcome)
                self._spans = None
            if isinstance(error, Overloaded):
                self._metrics.rejections.labels(outcome).inc()
            raise
        finally:
            if not paid:  # its reader left, or it failed: what was sent counts all the same
                for account in self._accounts:
                    account.heard(heard, self._clock())
            self._leave()

    def _finished(self, event: Finished, heard: float, gap: float) -> None:
        metrics, usage = self._metrics, event.usage
        if self._spans is not None:
            self._spans.finished(str(event.reason), event.times, usage)
            self._spans = None
        if self._said is not None:
            log.info("response %s says %r", self.id, "".join(self._said))
        metrics.responses.labels(self._face, str(event.reason)).inc()
        if heard:
            metrics.rtf.labels(self._face).observe((self._clock() - self._began) / heard)
            metrics.underruns.labels(self._face).observe(gap)
        for point in _POINTS:
            if (seconds := getattr(event.times, point)) is not None:
                metrics.stage_times.labels(point).observe(seconds)
        metrics.audio.labels("in").inc(usage.audio_in_seconds)
        metrics.audio.labels("out").inc(usage.audio_out_seconds)
        for kind in ("prompt", "cached", "completion", "speech"):
            metrics.tokens.labels(kind).inc(getattr(usage, f"{kind}_tokens"))
        now = self._clock()
        for account in self._accounts:
            account.heard(usage.audio_in_seconds + usage.audio_out_seconds, now)

    def _note(self, event: Event, said: list[str]) -> None:
        """What users said and were told, where the operator wants it in the log."""
        if isinstance(event, TextDelta):
            said.append(event.text)
        elif isinstance(event, Heard):
            log.info("response %s hears %r", self.id, event.transcripts)

    def _leave(self) -> None:
        if self._spans is not None:  # its reader left
            self._spans.failed("left")
            self._spans = None
        if self._live:
            self._live = False
            self._metered.count(self._accounts, -1)


_POINTS = tuple(field.name for field in fields(StageTimes) if field.name not in ("handoff_us", "rows", "first_audio"))
