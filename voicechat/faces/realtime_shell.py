"""Around the pure session: the clock, the VAD, the ears and the cascade. The transports are thin over this.

A transport gives its session to a :class:`Shell`, calls it as things arrive, and performs what comes back through
:class:`Transport`. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

import numpy as np

from voicechat.contract.cascade import Cascade, Response
from voicechat.contract.errors import CascadeError, NotReady
from voicechat.contract.events import Finished
from voicechat.contract.hearing import PLAIN, HearingOptions
from voicechat.contract.logs import words_of
from voicechat.contract.sound import EARS_RATE, FRAME_SAMPLES, PCM_RATE, EarsPcm, Pcm
from voicechat.faces.metered import Metered
from voicechat.faces.realtime_share import LoopShare
from voicechat.faces.tracing import under
from voicechat.faces.turn_trace import TurnTraces
from voicechat.media.detectors import Detectors
from voicechat.media.echo import EchoGuard
from voicechat.media.resample import resample, to_float, to_pcm
from voicechat.media.spoken_away import SpokenAway
from voicechat.media.vad import FrameVad, Heard, SpeechVad, Vad
from voicechat.media.wire import decode_whole
from voicechat.realtime.client_events import ClientEvent
from voicechat.realtime.outbox import (
    BeginAudio,
    CancelJudge,
    CancelResponse,
    CancelTranscribe,
    ClearAudio,
    Close,
    EncodedClip,
    EndAudio,
    Event,
    HoldAudio,
    JudgeTurn,
    Output,
    Place,
    PlayAudio,
    ReleaseAudio,
    Send,
    SendWithAudio,
    Sound,
    StartResponse,
    Transcribe,
)
from voicechat.realtime.session import Session, SessionLimits

log = logging.getLogger(__name__)

TICK_S = 0.1
TRANSCRIBE_TIMEOUT_S = 30.0
_FRAMES_AT_ONCE = 10
_EARS_PAUSE_S = 0.5
_MOST_WAITING = 3000
"""Frames of a minute: older ones of a microphone that nobody has had the time to hear are dropped."""


class Transport(Protocol):
    """What a session needs of its connection. Nothing of it waits, but :meth:`room`."""

    @property
    def carries_audio(self) -> bool:
        """True if events may carry sound as base64."""

    def send(self, event: Event) -> None:
        """Send a server event."""

    def begin_audio(self, begin: BeginAudio) -> None:
        """Sound of a part begins."""

    def play(self, place: Place, pcm: Pcm) -> None:
        """The next sound of it: int16 mono at 24 kHz."""

    def end_audio(self, place: Place) -> None:
        """The part has no more sound."""

    def clear_audio(self) -> None:
        """Drop what was not played yet."""

    def hold_audio(self, held: bool) -> None:
        """Be silent for a moment, or go on from the very sample."""

    def close(self, code: int, reason: str) -> None:
        """Begin to close the connection."""

    async def room(self) -> None:
        """Wait until more sound can be taken without piling up."""


def new_id(prefix: str) -> str:
    """A fresh identifier such as ``item_5f3a…``."""
    return f"{prefix}_{secrets.token_hex(12)}"


def detecting(limits: SessionLimits, detectors: Detectors | None) -> SessionLimits:
    """``limits`` for a session with these detectors."""
    if detectors is None:
        return dataclasses.replace(limits, judged=False)
    policy = limits.policy.with_speech_detector(server_plays=limits.server_plays)
    return dataclasses.replace(limits, judged=True, policy=policy)


class Shell:
    """Runs one session. :meth:`close` ends it, :meth:`wait_closed` waits for its tasks. Without ``detectors`` speech is
    told from silence by sound and level alone, and nobody judges turns: the session's limits must say so. Sessions with
    one ``share`` take the event loop's time together."""

    def __init__(
        self,
        session: Session,
        cascade: Cascade,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        transcribe_timeout: float = TRANSCRIBE_TIMEOUT_S,
        detectors: Detectors | None = None,
        share: LoopShare | None = None,
    ) -> None:
        if session.limits.judged and detectors is None:
            raise ValueError("turns are to be judged, but there are no detectors")
        self.session = session
        self._cascade = cascade
        self._transport = transport
        self._clock = clock
        self._timeout = transcribe_timeout
        self._detectors = detectors
        self._share = share or LoopShare()
        tracer = cascade.tracer if isinstance(cascade, Metered) else None
        self._traces = None if tracer is None else TurnTraces(tracer, session.id)
        self._vad: Vad = FrameVad() if detectors is None else detectors.vad()
        self._threshold = 0.5
        self._rest: EarsPcm = np.zeros(0, np.float32)
        self._echo = EchoGuard()
        self._away: SpokenAway | None = None if session.limits.server_plays else SpokenAway()
        self._inbox: deque[EarsPcm | int] = deque(maxlen=_MOST_WAITING)
        self._listener: asyncio.Task[None] | None = None
        self._responses: dict[int, Response] = {}
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._judgements: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._tick()

    # -- what the transport calls -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Events can flow."""
        self._tick()
        self._perform(self.session.open())
        self._start(self._run_clock())

    def on_event(self, event: ClientEvent) -> None:
        """The client sent an event (sound goes to :meth:`on_samples`)."""
        self._tick()
        self._perform(self.session.on_event(event))

    async def on_samples(self, samples: EarsPcm) -> None:
        """Sound of any length (float32 mono at 16 kHz); lets others run in between if it is long, or holds speech.

        Nothing else of this microphone, nor what the client sends after it, may come before this is over.
        """
        sound = np.concatenate([self._rest, samples])
        count = len(sound) // FRAME_SAMPLES
        self._rest = sound[count * FRAME_SAMPLES :]
        frames = [sound[index * FRAME_SAMPLES : (index + 1) * FRAME_SAMPLES] for index in range(count)]
        for begin in range(0, count, _FRAMES_AT_ONCE):
            some = frames[begin : begin + _FRAMES_AT_ONCE]
            await self._hear(some)
            if len(some) == _FRAMES_AT_ONCE:
                await asyncio.sleep(0)

    def on_frame(self, frame: EarsPcm) -> None:
        """20 ms from the microphone (float32, shape ``[320]``), from a caller that can't wait."""
        self._put(frame)

    def on_starved(self, frames: int) -> None:
        """No sound came for this many frames, from a caller that can't wait."""
        self._put(frames)

    def _put(self, heard: EarsPcm | int) -> None:
        """Sound, or the lack of it, is heard in order: on the spot if there is time, else by a task that goes on while
        there is some."""
        if self._closed:
            return
        if self._listener is not None and not self._listener.done():
            self._inbox.append(heard)
        elif not self._share.take():
            self._inbox.append(heard)
            self._listener = self._start(self._listen())
        else:
            try:
                if isinstance(heard, int):
                    self._lack(heard)
                else:
                    self._hear_now(heard)
            except Exception:  # a fault of ours ends the session, as one in a task does, and is told by the event loop
                self._transport.close(1011, "internal error")
                raise

    def _hear_now(self, frame: EarsPcm) -> None:
        """As :meth:`_hear`, without a task unless Silero has to be waited for."""
        vad, strict = self._vad, self.session.playback.sounding
        clean = self._without_echo(frame)
        if not self._detecting():
            self._take(frame, False)
        elif self._detectors is None or not isinstance(vad, SpeechVad):
            self._take(frame, vad.voiced(clean, strict=strict))
        else:
            heard = vad.hear(clean)
            if (found := self._detectors.at_once(vad, [heard])) is None:
                self._listener = self._start(self._listen((frame, heard)))
            else:
                self._take(frame, vad.decide(*found[0], strict=strict))

    def _lack(self, frames: int) -> None:
        if not self._closed:
            self._echo.missed(frames)
            self._tick()
            self._perform(self.session.on_starved(frames))

    async def _listen(self, begun: tuple[EarsPcm, Heard] | None = None) -> None:
        """Hear what comes in; first what was ``begun``, if it is there."""
        if begun is not None and self._detectors is not None and isinstance(vad := self._vad, SpeechVad):
            frame, heard = begun
            found = await self._detectors.later(vad, [heard])
            await self._share.turn()
            self._decide(vad, [frame], found)
        while self._inbox:
            some: list[EarsPcm] = []
            while self._inbox and len(some) < _FRAMES_AT_ONCE and not isinstance(frame_or_lack := self._inbox[0], int):
                some.append(frame_or_lack)
                self._inbox.popleft()
            if some:
                await self._hear(some)
            elif isinstance(lacking := self._inbox.popleft(), int):
                self._lack(lacking)

    async def _hear(self, frames: list[EarsPcm]) -> None:
        """The one road from frames to decisions: find speech in ``frames``, and let the session have them."""
        if self._closed:
            return
        vad, detecting = self._vad, self._detecting()
        if detecting and self._detectors is not None and isinstance(vad, SpeechVad):
            found = await self._detectors.heard(vad, [self._without_echo(frame) for frame in frames])
            await self._share.turn()  # what was run together becomes known at the same moment
            self._decide(vad, frames, found)
            return
        await self._share.turn()
        for frame in frames:
            clean = self._without_echo(frame)
            self._take(frame, detecting and vad.voiced(clean, strict=self.session.playback.sounding))

    def _decide(self, vad: SpeechVad, frames: list[EarsPcm], found: list[tuple[Heard, float | None]]) -> None:
        for frame, (heard, probability) in zip(frames, found, strict=True):
            self._take(frame, vad.decide(heard, probability, strict=self.session.playback.sounding))

    def _without_echo(self, frame: EarsPcm) -> EarsPcm:
        """What detectors are to hear of a frame. A client that plays does so as it was sent to."""
        if self._away is not None:
            self._echo.sent(self._away.next_frame(self._clock()))
        return self._echo.heard(frame)

    def on_sent(self, pcm: Pcm) -> None:
        """20 ms that leave the server's playout clock, silence included: int16 ``[480]``."""
        self._echo.sent(pcm)

    def _detecting(self) -> bool:
        """Whether speech is to be found; sees to the threshold that the session wants now."""
        detection = self.session.config.detection
        if detection is not None and detection.threshold != self._threshold:
            self._threshold = detection.threshold
            self._vad.set_threshold(detection.threshold)
        return detection is not None

    def _take(self, frame: EarsPcm, voiced: bool) -> None:
        if not self._closed:
            self._tick()
            self._perform(self.session.on_frame(frame, voiced))

    def on_played(self, played: int, *, started: bool, drained: bool) -> None:
        """A frame has left the server's playout clock."""
        self._tick()
        self._perform(self.session.on_played(played, started=started, drained=drained))

    def going_down(self) -> None:
        """The server will soon end this session: tell the client."""
        self._tick()
        self._perform(self.session.going_down())

    def close(self, reason: str) -> None:
        """The connection is gone: stop everything. Idempotent."""
        if self._closed:
            return
        log.info("session %s ends: %s", self.session.id, reason)
        self._perform(self.session.close())
        self._closed = True
        if self._traces is not None:
            self._traces.close()
        for response in self._responses.values():
            response.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed session have ended."""
        while others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._closed:
            self._perform(self.session.tick(self._clock()))

    def _perform(self, outputs: Iterable[Output]) -> None:
        transport = self._transport
        for output in outputs:
            if self._closed:
                return
            match output:
                case Send(event):
                    transport.send(event)
                    if isinstance(self._cascade, Metered):
                        self._cascade.on_server_event(event)
                    if self._traces is not None:
                        self._traces.on_event(event)
                case PlayAudio(place, pcm):
                    transport.play(place, pcm)
                    if self._away is not None:
                        self._away.push(pcm, self._clock())
                case BeginAudio():
                    transport.begin_audio(output)
                case EndAudio(place):
                    transport.end_audio(place)
                case ClearAudio():
                    transport.clear_audio()
                    if self._away is not None:
                        self._away.clear()
                case HoldAudio() | ReleaseAudio():
                    transport.hold_audio(isinstance(output, HoldAudio))
                case StartResponse(generation, request):
                    with under(None if self._traces is None else self._traces.answering()):
                        response = self._cascade.respond(request)
                        self._responses[generation] = response
                        self._start(self._respond(generation, response))
                case CancelResponse(generation):
                    if (running := self._responses.get(generation)) is not None:
                        running.cancel()
                case Transcribe(job, sound):
                    self._jobs[job] = self._start(self._transcribe(job, sound))
                case CancelTranscribe(job):
                    if (task := self._jobs.pop(job, None)) is not None:
                        task.cancel()
                case JudgeTurn(job, clip):
                    self._judgements[job] = self._start(self._judge(job, _floats(clip.samples, clip.rate, EARS_RATE)))
                case CancelJudge(job):
                    if (task := self._judgements.pop(job, None)) is not None:
                        task.cancel()
                case SendWithAudio(event, sounds):
                    transport.send(_with_audio(event, sounds) if transport.carries_audio else event)
                case Close(code, reason):
                    transport.close(code, reason)

    async def _respond(self, generation: int, response: Response) -> None:
        """Bring a response from the cascade to the session. One that was stopped is drained in silence."""
        session, finished = self.session, False
        try:
            async for event in response:
                await self._share.turn()
                finished = isinstance(event, Finished)
                self._tick()
                self._perform(session.on_cascade(generation, event))
                await self._transport.room()
            if not finished:
                self._perform(session.on_cascade_failed(generation, CascadeError("The reply broke off.")))
        except CascadeError as error:
            self._tick()
            log.warning("session %s: a response failed: %s", session.id, words_of(error))
            self._perform(session.on_cascade_failed(generation, error))
        finally:
            response.cancel()
            self._responses.pop(generation, None)

    def _hearing_options(self) -> HearingOptions:
        """As the client wants its sound to be heard. A language that the ears don't know is none that they could be
        told to hear."""
        config = self.session.config
        language = (config.language or "").partition("-")[0].lower()
        known = language in self._cascade.model.ears.languages
        return HearingOptions(language if known else None, str((config.transcription or {}).get("prompt") or ""))

    async def _transcribe(self, job: int, sound: Sound) -> None:
        session = self.session
        try:
            async with asyncio.timeout(self._timeout):
                if isinstance(sound, EncodedClip):
                    samples = await asyncio.to_thread(decode_whole, sound.data, sound.format, EARS_RATE)
                else:
                    samples = _floats(sound.samples, sound.rate, EARS_RATE)
                with contextlib.nullcontext() if self._traces is None else self._traces.transcribing():
                    text = await self._hear_patiently(samples)
            await self._share.turn()
        except (CascadeError, TimeoutError) as error:
            self._jobs.pop(job, None)
            log.warning("session %s: the ears failed: %s", session.id, words_of(error))
            self._tick()
            self._perform(session.on_text_failed(job, error))
        else:
            self._jobs.pop(job, None)
            self._tick()
            self._perform(session.on_text(job, text))

    async def _hear_patiently(self, samples: EarsPcm) -> str:
        """What was said; waits for ears that are being started again. The caller bounds the time."""
        while True:
            try:
                options = self._hearing_options()
                if options == PLAIN:
                    return await self._cascade.transcribe(samples)
                return (await self._cascade.hear(samples, options)).text
            except NotReady as error:
                log.info("session %s: a turn waits: %s", self.session.id, error)
                await asyncio.sleep(_EARS_PAUSE_S)

    async def _judge(self, job: int, turn: EarsPcm) -> None:
        assert self._detectors is not None
        probability = None
        try:
            probability = await self._detectors.finished(turn)
        except RuntimeError as error:  # the detectors are closed, or the model can't compute this
            log.warning("session %s: a turn was not judged: %s", self.session.id, error)
        await self._share.turn()
        self._judgements.pop(job, None)
        self._tick()
        self._perform(self.session.on_judged(job, probability))

    async def _run_clock(self) -> None:
        while not self._closed:
            await asyncio.sleep(TICK_S)
            self._tick()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session %s: a task failed", self.session.id, exc_info=error)
            if not self._closed:
                self._transport.close(1011, "internal error")


def _with_audio(event: Event, sounds: Any) -> Event:
    """``event`` with the sounds of its item filled in."""
    content = event["item"]["content"]
    for index, clips in sounds.items():
        parts = []
        for clip in clips:
            if isinstance(clip, EncodedClip):
                parts.append(decode_whole(clip.data, clip.format, PCM_RATE))
            else:
                parts.append(_floats(clip.samples, clip.rate, PCM_RATE))
        content[index]["audio"] = base64.b64encode(to_pcm(np.concatenate(parts)).astype("<i2").tobytes()).decode()
    return event


def _floats(samples: Any, rate: int, wanted: int) -> EarsPcm:
    floats = to_float(samples) if samples.dtype == np.int16 else samples
    return resample(floats, rate, wanted)
