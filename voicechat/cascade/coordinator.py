"""The coordinator: takes each response through Thinker, Talker and VoiceBox, all of them at work on it at once.

Runs on the server's event loop and never blocks it. Everything is fire and forget: a request is sent to the stages, and
their messages move it on. A response's slot is free again once every stage that held it has said so.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import re
import time
from collections.abc import Callable, Mapping

from voicechat.cascade.api import (
    EARS_RATE,
    PCM_RATE,
    AudioDelta,
    AudioPart,
    CascadeError,
    EarsPcm,
    FinishReason,
    Heard,
    InvalidRequest,
    Message,
    ModelInfo,
    NotReady,
    Pcm,
    ResponseRequest,
    SpeechRequest,
    StageFailed,
    TextDelta,
)
from voicechat.cascade.chunks import ChunkBuffer, ChunkPolicy
from voicechat.cascade.hearing import Hearing
from voicechat.cascade.leases import Leases
from voicechat.cascade.messages import (
    Abort,
    Codes,
    Decode,
    Failed,
    Generate,
    Piece,
    Released,
    Sound,
    Speak,
    Spoken,
    Text,
    Transcript,
    Turn,
    Written,
)
from voicechat.cascade.messages import Message as StageMessage
from voicechat.cascade.pool import Pool
from voicechat.cascade.response import ResponseState
from voicechat.cascade.stage import Stage

log = logging.getLogger(__name__)

STEP_SAMPLES = PCM_RATE // 25
"""Samples of one speech step (40 ms)."""
MAX_TEXT = 100_000
"""Most characters of a given text that is spoken, about two hours."""
MAX_UNREAD = 120 * PCM_RATE
"""Samples that a face may leave unread, before no more are made for it."""
NOTHING_TO_SPEAK = "There is nothing in the text that can be spoken."
_WORDS = re.compile(r"\s*\S{1,200}|\s+")
"""A given text is handed to the Talker in such pieces."""
_DEAD_SLOT_REST = 0.1
"""Seconds that a dead stage's slots rest: its engine core was killed, but may be in the middle of a store."""


class Coordinator:
    """Implements :class:`voicechat.cascade.api.Cascade` over three stages and a pool.

    ``spawners`` makes each stage's :class:`Stage` given the two callbacks; ``policies`` are the chunk policies of
    ``latency_first`` True and False; ``decodes`` bounds the chunks inside the VoiceBox at any time.
    """

    def __init__(
        self,
        model: ModelInfo,
        pool: Pool,
        spawners: Mapping[str, Callable[..., Stage]],
        policies: Mapping[bool, ChunkPolicy],
        *,
        decodes: int,
        acquire_timeout: float,
        max_waiting: int,
    ) -> None:
        self.model = model
        self.pool = pool
        self.leases = Leases(pool.spec.slots, max_waiting=max_waiting)
        self._policies = policies
        self._decodes = decodes
        self._acquire_timeout = acquire_timeout
        self._states: dict[int, ResponseState] = {}
        self._numbers = itertools.count(1)
        self._died: dict[str, float] = {}
        self._warm = False
        handlers = {"thinker": self._from_thinker, "talker": self._from_talker, "voicebox": self._from_voicebox}
        self.stages = {
            name: spawner(on_message=functools.partial(self._dispatch, handlers[name]), on_death=self._stage_died)
            for name, spawner in spawners.items()
        }
        self.hearing = Hearing(
            pool,
            self.stages["thinker"],
            lambda: next(self._numbers),
            acquire_timeout=acquire_timeout,
            max_waiting=max_waiting,
        )
        self._keepers: set[asyncio.Task[None]] = set()

    # ---- life

    async def start(self) -> None:
        """Start all stages, then run both modes once from end to end. Raises RuntimeError if a stage can't start."""
        try:
            async with asyncio.TaskGroup() as group:
                for stage in self.stages.values():
                    group.create_task(stage.start())
        except ExceptionGroup as failures:
            await self.stop()
            raise failures.exceptions[0] from None
        for latency_first in (True, False):
            request = ResponseRequest((Message.text("user", "Say hello."),), latency_first=latency_first)
            async for _ in self._begin(request):
                pass
        self._warm = True

    async def stop(self) -> None:
        """Cancel what runs, stop the stages, free the pool."""
        self._warm = False
        for keeper in self._keepers:
            keeper.cancel()
        for state in list(self._states.values()):
            state.cancel()
        await asyncio.gather(*(stage.stop() for stage in self.stages.values()))
        self.pool.close()

    @property
    def ready(self) -> bool:
        """True once every stage is warm, and while all of them are up."""
        return self._warm and all(stage.up for stage in self.stages.values())

    def stage_states(self) -> dict[str, str]:
        """For health reports: ``up``, ``starting`` or ``down`` for each stage."""
        return {
            name: "up" if stage.up else "starting" if stage.alive else "down" for name, stage in self.stages.items()
        }

    # ---- what faces call

    def respond(self, request: ResponseRequest) -> ResponseState:
        """Start a response; see :class:`voicechat.cascade.api.Cascade`."""
        return self._begin_if_ready(request)

    def speak(self, request: SpeechRequest) -> ResponseState:
        """Speak a given text; see :class:`voicechat.cascade.api.Cascade`."""
        return self._begin_if_ready(request)

    def _begin_if_ready(self, request: ResponseRequest | SpeechRequest) -> ResponseState:
        down = [name for name in self._needed(request) if not self.stages[name].up]
        if down or not self._warm:
            state = ResponseState(next(self._numbers), request, self._cancel)
            what = f"the {', '.join(down)} stage is not up" if down else "still warming up"
            state.end(NotReady(f"The server is not ready: {what}. Try again in a moment."))
            return state
        return self._begin(request)

    async def transcribe(self, pcm: EarsPcm) -> str:
        """Text of float32 mono sound at 16 kHz, shape ``[samples]``."""
        return await self.hearing.transcribe(pcm)

    # ---- a response's way

    def _begin(self, request: ResponseRequest | SpeechRequest) -> ResponseState:
        state = ResponseState(next(self._numbers), request, self._cancel)
        self._states[state.number] = state
        way = self._enter_speech(state, request) if isinstance(request, SpeechRequest) else self._enter(state, request)
        state.task = asyncio.get_running_loop().create_task(way, name=state.id)
        state.task.add_done_callback(lambda task: self._entered(state, task))
        return state

    async def _enter(self, state: ResponseState, request: ResponseRequest) -> None:
        voice = self._voice(request.voice) if request.audio else ""
        if not request.messages:
            raise InvalidRequest("There are no messages to answer.", param="messages")
        turns = await self._hear(state, request)
        sampling, slot, generation = request.sampling, -1, 0
        if request.audio:
            slot, generation = await self._lease(state)
        self._check_up(request)
        if request.audio:
            self._open_mouth(state, request.latency_first)
            self._send_to(state, "talker", Speak(state.number, slot, generation, voice, sampling.seed))
        self._send_to(
            state,
            "thinker",
            Generate(
                state.number,
                turns,
                request.audio,
                slot,
                generation,
                sampling.max_tokens,
                sampling.temperature,
                sampling.top_p,
                sampling.seed,
                sampling.stop,
            ),
        )

    async def _enter_speech(self, state: ResponseState, request: SpeechRequest) -> None:
        voice = self._voice(request.voice)
        if len(request.text) > MAX_TEXT:
            raise InvalidRequest(f"The text is too long: at most {MAX_TEXT} characters are spoken.", param="text")
        if not request.text.strip():
            raise InvalidRequest(NOTHING_TO_SPEAK, param="text")
        slot, generation = await self._lease(state)
        self._check_up(request)
        self._open_mouth(state, request.latency_first)
        state.text_done = True
        self._send_to(state, "talker", Speak(state.number, slot, generation, voice, request.seed, rows=False))
        pieces = tuple(_WORDS.findall(request.text))
        self.stages["talker"].send(Text(state.number, pieces, True, time.monotonic_ns()))

    def _voice(self, wanted: str | None) -> str:
        voice = wanted or self.model.default_voice
        if voice not in self.model.voices:
            names = ", ".join(self.model.voices)
            raise InvalidRequest(f"There is no voice '{voice}'. Voices are: {names}.", param="voice")
        return voice

    async def _lease(self, state: ResponseState) -> tuple[int, int]:
        """A slot of the pool, made ready, and the lease's generation."""
        state.lease = lease = await self.leases.acquire(self._acquire_timeout)
        state.entered_at = time.monotonic()
        self.pool.begin(lease.slot, lease.generation)
        return lease.slot, lease.generation

    def _check_up(self, request: ResponseRequest | SpeechRequest) -> None:
        for name in self._needed(request):
            if not self.stages[name].up:  # it died while this response waited
                raise StageFailed(name, f"The {name} stage is down. Please try again in a moment.")

    def _open_mouth(self, state: ResponseState, latency_first: bool) -> None:
        """From here on the response may have sound."""
        others = sum(other.chunks is not None and not other.ended for other in self._states.values())
        state.chunks = ChunkBuffer(self._policies[latency_first].eased(others))
        state.on_read = self._pump

    def _send_to(self, state: ResponseState, name: str, message: StageMessage) -> None:
        """Bring a response into a stage, which holds it until it says Released."""
        state.inside.add(name)
        self.stages[name].send(message)

    def _entered(self, state: ResponseState, task: asyncio.Task[None]) -> None:
        """What an entering response ran into becomes its outcome; a programming error is not hidden."""
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, CascadeError):
                self._fail(state, error)
            else:
                log.error("response %s failed", state.id, exc_info=error)
                self._fail(state, CascadeError("The server had an error while processing the request."))
        self._settle(state)

    @staticmethod
    def _needed(request: ResponseRequest | SpeechRequest) -> tuple[str, ...]:
        """Stages that a request goes through; while another is down, it is served all the same."""
        if isinstance(request, SpeechRequest):
            return ("talker", "voicebox")
        return ("thinker", "talker", "voicebox") if request.audio else ("thinker",)

    async def _hear(self, state: ResponseState, request: ResponseRequest) -> tuple[Turn, ...]:
        """The conversation as text; sounds go to the ears, one after another, so that no caller takes all bays."""
        sounds = [part for message in request.messages for part in message.parts if isinstance(part, AudioPart)]
        if sounds:
            state.audio_in_seconds = sum(len(part.pcm) for part in sounds) / EARS_RATE
            texts = [await self.transcribe(part.pcm) for part in sounds]
            state.marks.note("ears")
            state.emit(Heard(tuple(texts)))
            heard = iter(texts)
        turns = []
        for message in request.messages:
            words = [next(heard) if isinstance(part, AudioPart) else part.text for part in message.parts]
            turns.append(Turn(message.role, "\n".join(words)))
        return tuple(turns)

    def _dispatch(self, handler: Callable[[StageMessage], None], message: StageMessage) -> None:
        """Pass a stage's message on. A programming error ends the one response that met it, loudly, not the stage."""
        try:
            handler(message)
        except Exception:
            log.exception("handling %r failed", message)
            if (state := self._state_of(message)) is not None:
                self._fail(state, CascadeError("The server had an error while processing the request."))

    def _from_thinker(self, message: StageMessage) -> None:
        if isinstance(message, Transcript):
            self.hearing.settle(message.id, message.text)
            return
        if isinstance(message, Failed) and self.hearing.settle(message.id, CascadeError(message.message)):
            return
        state = self._state_of(message)
        if state is None:
            return
        match message:
            case Piece() if not state.ended:
                state.marks.note("thinker_first_token")
                if text := "".join(message.pieces):
                    state.emit(TextDelta(text))
                if state.chunks is not None:
                    self.stages["talker"].send(Text(state.number, message.pieces, False, message.sent_ns))
            case Written() if not state.ended:
                state.marks.note("thinker_done")
                state.prompt_tokens, state.cached_tokens = message.prompt_tokens, message.cached_tokens
                state.completion_tokens, state.text_done = message.completion_tokens, True
                if message.reason == "length":
                    state.finish = FinishReason.LENGTH
                if state.chunks is not None:
                    self.stages["talker"].send(Text(state.number, (), True, time.monotonic_ns()))
                self._maybe_finish(state)
            case _:
                self._from_any(state, "thinker", message)

    def _from_talker(self, message: StageMessage) -> None:
        state = self._state_of(message)
        if state is None:
            return
        match message:
            case Codes() if not state.ended and state.chunks is not None:
                state.marks.note("talker_first_code")
                state.chunks.push(message.codes)
                state.handoffs_us.extend(message.rows_ready_us)
                self._pump()
            case Spoken() if not state.ended and state.chunks is not None:
                state.chunks.close()
                state.speech_done = True
                if isinstance(state.request, SpeechRequest) and not state.chunks.steps:
                    self._fail(state, InvalidRequest(NOTHING_TO_SPEAK, param="text"))
                    return
                self._pump()
                self._maybe_finish(state)
            case _:
                self._from_any(state, "talker", message)

    def _from_voicebox(self, message: StageMessage) -> None:
        state = self._state_of(message)
        if state is None or not isinstance(message, Sound) or state.lease is None:
            return
        state.decoding = None
        if not state.ended:
            state.marks.note("voicebox_first_chunk")
            self._leave(state, self.pool.read_pcm(state.lease.slot, message.start, message.count))
            self._maybe_finish(state)
        self._settle(state)
        self._pump()

    def _from_any(self, state: ResponseState, stage: str, message: StageMessage) -> None:
        match message:
            case Failed(invalid=True):
                self._fail(state, InvalidRequest(message.message, param=message.param, code=message.code))
            case Failed():
                self._fail(state, StageFailed(stage, message.message))
            case Released():
                state.inside.discard(stage)
                state.acks[stage] = message.ack
                done = state.text_done if stage == "thinker" else state.speech_done
                if not done and not state.ended:  # its engine is gone, and the host is about to follow
                    self._fail(state, StageFailed(stage, f"The {stage} stage broke off. Please try again."))
                self._settle(state)

    def _state_of(self, message: StageMessage) -> ResponseState | None:
        return self._states.get(getattr(message, "id", -1))

    def _pump(self) -> None:
        """Give the VoiceBox its next chunks, the one whose player runs dry first before the others."""
        busy = sum(state.decoding is not None for state in self._states.values())
        if busy >= self._decodes:
            return
        eligible = [
            state
            for state in self._states.values()
            if state.chunks is not None
            and state.decoding is None
            and not state.ended
            and state.unread_samples < MAX_UNREAD
            and state.chunks.ready
        ]
        eligible.sort(key=self._runs_dry)
        for state in eligible[: self._decodes - busy]:
            assert state.chunks is not None
            assert state.lease is not None
            chunk = state.chunks.pop()
            assert chunk is not None
            state.marks.note("talker_first_chunk")
            state.decoding = chunk
            start = chunk.first_step * STEP_SAMPLES
            self.stages["voicebox"].send(
                Decode(state.number, state.lease.slot, chunk.codes, chunk.left, chunk.emit, start)
            )

    @staticmethod
    def _runs_dry(state: ResponseState) -> tuple[float, int]:
        first = state.marks.get("first_audio")
        if first is None:
            return (float("-inf"), state.number)
        return (first + state.sent_samples / PCM_RATE - state.marks.since_start(), state.number)

    def _leave(self, state: ResponseState, pcm: Pcm) -> None:
        """The one door by which sound leaves the cascade; a watermark stands here."""
        state.sent_samples += len(pcm)
        state.marks.note("first_audio")
        state.emit(AudioDelta(pcm))

    def _maybe_finish(self, state: ResponseState) -> None:
        if not state.text_done or state.ended:
            return
        if state.chunks is not None and not (state.chunks.done and state.decoding is None):
            return
        state.end(state.finished(state.finish, PCM_RATE))
        self._settle(state)

    # ---- ends

    def _cancel(self, state: ResponseState) -> None:
        if state.task is not None:
            state.task.cancel()
        state.end(state.finished(FinishReason.CANCELLED, PCM_RATE))
        self._withdraw(state)

    def _fail(self, state: ResponseState, error: CascadeError) -> None:
        state.end(error)
        self._withdraw(state)

    def _withdraw(self, state: ResponseState) -> None:
        """Take an ended response out of every stage that still holds it."""
        for name in state.inside:
            self.stages[name].send(Abort(state.number))
        self._settle(state)

    def _settle(self, state: ResponseState) -> None:
        """Give the slot back once the response has ended and no stage holds it any more."""
        entering = state.task is not None and not state.task.done()
        if not state.ended or state.inside or state.decoding is not None or entering:
            return
        if self._states.pop(state.number, None) is None or state.lease is None:
            return
        lanes = {"thinker": self.pool.thinker_ack, "talker": self.pool.talker_ack}
        slot, acks, entered = state.lease.slot, state.acks, state.entered_at

        def quiet() -> bool:
            """True once no worker can touch the slot: it said so, or its stage died and lies still."""
            for name, ack in acks.items():
                died = self._died.get(name, 0.0)
                resting = died > entered and time.monotonic() > died + _DEAD_SLOT_REST
                if ack and int(lanes[name][slot]) != ack and not resting:
                    return False
            return True

        self.leases.release(state.lease, quiet)

    def _stage_died(self, stage: Stage, how: str) -> None:
        """Fail what was inside a dead stage, with one clear error each, then bring the stage back."""
        self._died[stage.name] = time.monotonic()
        error = f"The {stage.name} stage died ({how}) while it worked on this request. Please try again."
        if stage.name == "thinker":
            self.hearing.fail_all(lambda: StageFailed(stage.name, error))
        for state in list(self._states.values()):
            if stage.name == "voicebox":
                lost = state.decoding is not None or (state.chunks is not None and not state.chunks.done)
                state.decoding = None
            else:
                lost = stage.name in state.inside
                if lost:
                    state.inside.discard(stage.name)
                    state.acks[stage.name] = -1
            if lost:
                self._fail(state, StageFailed(stage.name, error))
            self._settle(state)
        if self._warm:
            keeper = asyncio.get_running_loop().create_task(self._revive(stage), name=f"revive-{stage.name}")
            self._keepers.add(keeper)
            keeper.add_done_callback(self._keepers.discard)

    async def _revive(self, stage: Stage) -> None:
        """Start a dead stage again, patiently; the others serve on meanwhile."""
        for attempt in itertools.count():
            await asyncio.sleep(min(0.5 * 2**attempt, 30.0))
            try:
                await stage.start()
            except RuntimeError as error:
                log.error("the %s stage did not come back: %s", stage.name, error)
            else:
                log.info("the %s stage is back", stage.name)
                return
