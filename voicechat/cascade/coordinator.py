"""The coordinator: takes each response into Thinker, Talker and VoiceBox, all of them at work on it at once.

Runs on the server's event loop and never blocks it. It starts stages and brings dead ones back, and sends requests into
them; from there on :mod:`voicechat.cascade.traffic` moves them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from voicechat.cascade.chunks import ChunkBuffer, ChunkPolicy
from voicechat.cascade.hearing import Hearing
from voicechat.cascade.leases import Leases
from voicechat.cascade.response import ResponseState
from voicechat.cascade.revival import Revival
from voicechat.cascade.stage import Stage, StageLike
from voicechat.cascade.traffic import NOTHING_TO_SPEAK, Traffic
from voicechat.contract.calls import CallParser
from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import CascadeError, InvalidRequest, NotReady, StageFailed
from voicechat.contract.events import Heard
from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription
from voicechat.contract.messages import Call, Generate, Medium, Speak, Text, ToolSpec, Turn
from voicechat.contract.messages import Message as StageMessage
from voicechat.contract.pool import Pool
from voicechat.contract.requests import (
    AudioPart,
    CallPart,
    ImagePart,
    Message,
    ResponseRequest,
    ResultPart,
    SpeechRequest,
)
from voicechat.contract.sound import EARS_RATE, MAX_SPEED, MIN_SPEED, EarsPcm
from voicechat.contract.stopwatch import Stopwatch, observe

log = logging.getLogger(__name__)

MAX_TEXT = 100_000
"""Most characters of a given text that is spoken, about two hours."""
_WORDS = re.compile(r"\s*\S{1,200}|\s+")
"""A given text is handed to the Talker in such pieces."""
_WARM_UP_TEXT = "Hello. How are you?"


class Coordinator:
    """Implements :class:`voicechat.contract.cascade.Cascade` over the stages and a pool.

    ``spawners`` makes each stage given the two callbacks: ``thinker``, ``talker``, ``voicebox``, if the Thinker's stage
    has no ears ``ears``, and any further process which no response goes through. ``policies`` are the chunk policies of
    ``latency_first`` True and False; ``decodes`` bounds the chunks inside the VoiceBox at any time. Without
    ``hidden_states`` the Talker is told to read the Thinker's text alone; ``thinks`` is False where a brain elsewhere
    writes. ``step_samples`` and ``step_bytes`` are those of a speech step.
    """

    def __init__(
        self,
        model: ModelInfo,
        pool: Pool,
        spawners: Mapping[str, Callable[..., StageLike]],
        policies: Mapping[bool, ChunkPolicy],
        *,
        decodes: int,
        acquire_timeout: float,
        max_waiting: int,
        step_samples: int,
        step_bytes: int,
        hidden_states: bool = True,
        thinks: bool = True,
    ) -> None:
        self.model = model
        self.pool = pool
        self.leases = Leases(pool.spec.slots, max_waiting=max_waiting)
        self._policies = policies
        self._acquire_timeout = acquire_timeout
        self._hidden_states = hidden_states
        self._thinks = thinks
        self._step_bytes = step_bytes
        self._numbers = itertools.count(1)
        self._warm = False
        self.traffic = Traffic(pool, self.leases, decodes=decodes, step_samples=step_samples)
        self.stages = {
            role: spawner(
                on_message=functools.partial(self.traffic.take, role),
                on_death=functools.partial(self._stage_died, role),
            )
            for role, spawner in spawners.items()
        }
        self.hearing = Hearing(
            pool,
            self.stages.get("ears", self.stages["thinker"]),
            self.stages["thinker"],
            lambda: next(self._numbers),
            acquire_timeout=acquire_timeout,
            max_waiting=max_waiting,
        )
        self.traffic.stages, self.traffic.hearing = self.stages, self.hearing
        self.revival = Revival()
        self.restarts = self.revival.restarts = dict.fromkeys(self.stages, 0)
        """How often each stage came back."""

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
            async for _ in self._begin(self._rehearsal(latency_first)):
                pass
        self._warm = True

    def _rehearsal(self, latency_first: bool) -> ResponseRequest | SpeechRequest:
        """What is asked for to warm up; of a brain elsewhere nothing, which may cost its owner."""
        if self._thinks:
            return ResponseRequest((Message.text("user", "Say hello."),), latency_first=latency_first)
        return SpeechRequest(_WARM_UP_TEXT, latency_first=latency_first)

    async def stop(self) -> None:
        """Cancel what runs, stop the stages, free the pool."""
        self._warm = False
        self.revival.stop()
        for state in list(self.traffic.states.values()):
            state.cancel()
        await asyncio.gather(*(stage.stop() for stage in self.stages.values()))
        self.pool.close()

    def break_off(self) -> None:
        """End all that runs, each with an error."""
        for state in list(self.traffic.states.values()):
            self.traffic.fail(state, NotReady("The server is going down; the reply was broken off. Please try again."))

    @property
    def ready(self) -> bool:
        """True once every stage is warm, and while all of them are up."""
        return self._warm and all(stage.up for stage in self.stages.values())

    def stage_states(self) -> dict[str, str]:
        """For health reports: ``up``, ``starting`` or ``down`` for each stage; a brain may be ``unreachable``.

        Of one that is not started again, why.
        """
        return {stage.name: self.revival.given_up.get(stage.name, stage.state) for stage in self.stages.values()}

    def last_ends(self) -> dict[str, dict[str, Any]]:
        """Of each stage that has ended unasked: how the last time, how often it came back, and its last words."""
        return {
            stage.name: {
                "end": stage.diagnosis,
                "restarts": self.restarts.get(stage.name, 0),
                "given_up": stage.name in self.revival.given_up,
                "stderr": list(stage.last_words),
            }
            for stage in self.stages.values()
            if stage.diagnosis is not None
        }

    def stats(self) -> dict[str, Any]:
        """How the cascade is doing; see :class:`voicechat.contract.cascade.Operations`."""
        rows_written, write_ns, rows_read, read_ns = (int(number) for number in self.pool.counters)
        return {
            "ready": self.ready,
            "stages": self.stage_states(),
            "ends": self.last_ends(),
            "processes": {name: stage.pid for name, stage in self.stages.items()},
            "slots": {"total": self.leases.total, "free": self.leases.free, "waiting": self.leases.waiting},
            "pool": {
                "bytes": self.pool.size,
                "rows_written": rows_written,
                "write_ns": write_ns,
                "rows_read": rows_read,
                "read_ns": read_ns,
                "row_faults": int(self.pool.row_faults[0]),
            },
        }

    async def profile(self, seconds: float, gpu_seconds: float) -> dict[str, Any]:
        """Where the time goes, in this process (``server``) and in each stage; see ``Host.profile``."""
        roles = [role for role, stage in self.stages.items() if isinstance(stage, Stage) and stage.up]
        profiles = [self._profile_stage(role, seconds, gpu_seconds) for role in roles]
        *found, server = await asyncio.gather(*profiles, self._profile_server(seconds))
        return {"server": {"host": server, "engine": None}, **dict(zip(roles, found, strict=True))}

    async def _profile_stage(self, role: str, seconds: float, gpu_seconds: float) -> dict[str, Any]:
        stage = self.stages[role]
        assert isinstance(stage, Stage)
        try:
            return await stage.profile(seconds, gpu_seconds)
        except TimeoutError:
            return {"error": "no answer"}

    async def _profile_server(self, seconds: float) -> dict[str, Any]:
        watch = Stopwatch()
        self.traffic.watch_work(watch)
        return await observe(
            watch, seconds, lambda: sum(count for label, count in watch.calls.items() if label != "pump")
        )

    def _stage_died(self, role: str, stage: StageLike, how: str) -> None:
        """Fail what was inside a dead stage, with one clear error each, then bring the stage back."""
        message = f"The {stage.name} stage died ({how}) while it worked on this request. Please try again."
        self.traffic.stage_died(role, lambda: StageFailed(stage.name, message))
        if self._warm:
            self.revival.begin(stage)

    async def _until_up(self, request: ResponseRequest | SpeechRequest, began: float) -> None:
        """Wait for the stages that a request needs, as long as its patience since it ``began``; then
        :class:`NotReady`."""
        loop = asyncio.get_running_loop()
        while down := [stage.name for stage in self._needed(request) if not stage.up]:
            left = began + request.patience - loop.time()
            if left <= 0 or any(name in self.revival.given_up for name in down):
                what = f"the {', '.join(down)} stage is not up"
                raise NotReady(f"The server is not ready: {what}. Try again in a moment.")
            await self.revival.change(left)

    # ---- what faces call

    def respond(self, request: ResponseRequest) -> ResponseState:
        """Start a response; see :class:`voicechat.contract.cascade.Cascade`."""
        return self._begin_if_ready(request)

    def speak(self, request: SpeechRequest) -> ResponseState:
        """Speak a given text; see :class:`voicechat.contract.cascade.Cascade`."""
        return self._begin_if_ready(request)

    async def transcribe(self, pcm: EarsPcm) -> str:
        """Text of float32 mono sound at 16 kHz, shape ``[samples]``."""
        return (await self.hear(pcm)).text

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        """What a sound says; see :class:`voicechat.contract.cascade.Cascade`."""
        return await self.hearing.hear(pcm, options)

    # ---- a response's way in

    def _begin_if_ready(self, request: ResponseRequest | SpeechRequest) -> ResponseState:
        down = [stage.name for stage in self._needed(request) if not stage.up]
        if not self._warm or (down and not request.patience):
            state = ResponseState(next(self._numbers), request, self.traffic.cancel)
            what = f"the {', '.join(down)} stage is not up" if down else "still warming up"
            state.end(NotReady(f"The server is not ready: {what}. Try again in a moment."))
            return state
        return self._begin(request)

    def _needed(self, request: ResponseRequest | SpeechRequest) -> list[StageLike]:
        """Stages that a request goes through; while another is down, it is served all the same."""
        if isinstance(request, SpeechRequest):
            return [self.stages["talker"], self.stages["voicebox"]]
        roles = ("thinker", "talker", "voicebox") if request.audio else ("thinker",)
        return [self.stages[role] for role in roles]

    def _begin(self, request: ResponseRequest | SpeechRequest) -> ResponseState:
        state = ResponseState(next(self._numbers), request, self.traffic.cancel)
        self.traffic.states[state.number] = state
        way = self._enter_speech(state, request) if isinstance(request, SpeechRequest) else self._enter(state, request)
        state.task = asyncio.get_running_loop().create_task(way, name=state.id)
        state.task.add_done_callback(lambda task: self._entered(state, task))
        return state

    def _entered(self, state: ResponseState, task: asyncio.Task[None]) -> None:
        """What an entering response ran into becomes its outcome; a programming error is not hidden."""
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, CascadeError):
                self.traffic.fail(state, error)
            else:
                log.error("response %s failed", state.id, exc_info=error)
                self.traffic.fail(state, CascadeError("The server had an error while processing the request."))
        self.traffic.settle(state)

    async def _enter(self, state: ResponseState, request: ResponseRequest) -> None:
        _check_speed(request)
        voice = self._voice(request.voice) if request.audio else 0
        if not request.messages:
            raise InvalidRequest("There are no messages to answer.", param="messages")
        began = asyncio.get_running_loop().time()
        await self._until_up(request, began)
        turns = await self._turns(state, request)
        sampling, slot, generation = request.sampling, -1, 0
        if request.audio:
            slot, generation = await self._lease(state)
        if request.patience:
            await self._until_up(request, began)
        self._check_up(request)
        if request.audio:
            self._open_mouth(state, request.latency_first)
            if request.tools and request.tool_choice != "none":
                state.spoken = CallParser([tool.name for tool in request.tools])
            state.voice = voice
            speak = Speak(state.number, slot, generation, voice, sampling.seed, rows=self._hidden_states)
            self._send_to(state, "talker", speak)
        generate = Generate(
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
            tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in request.tools),
            request.tool_choice,
            request.must_call,
        )
        self._send_to(state, "thinker", generate)
        state.attached.clear()

    async def _enter_speech(self, state: ResponseState, request: SpeechRequest) -> None:
        _check_speed(request)
        voice = self._voice(request.voice)
        if len(request.text) > MAX_TEXT:
            raise InvalidRequest(f"The text is too long: at most {MAX_TEXT} characters are spoken.", param="text")
        if not request.text.strip():
            raise InvalidRequest(NOTHING_TO_SPEAK, param="text")
        slot, generation = await self._lease(state)
        self._check_up(request)
        self._open_mouth(state, request.latency_first)
        state.text_done = True
        state.voice = voice
        self._send_to(state, "talker", Speak(state.number, slot, generation, voice, request.seed, rows=False))
        pieces = tuple(_WORDS.findall(request.text))
        self.stages["talker"].send(Text(state.number, pieces, True, time.monotonic_ns()))

    def _voice(self, wanted: str | None) -> int:
        """Number of a voice, of the default one if none is wanted."""
        voice = wanted or self.model.default_voice
        if voice not in self.model.voices:
            names = ", ".join(self.model.voices)
            raise InvalidRequest(f"There is no voice '{voice}'. Voices are: {names}.", param="voice")
        return self.model.voices.index(voice)

    async def _lease(self, state: ResponseState) -> tuple[int, int]:
        """A slot of the pool, made ready, and the lease's generation."""
        # Whoever can't wait is told at once when waiting would probably be in vain.
        state.lease = lease = await self.leases.acquire(self._acquire_timeout, predict=not state.request.patience)
        state.entered_at = time.monotonic()
        state.marks.note("slot")
        self.pool.begin(lease.slot, lease.generation)
        return lease.slot, lease.generation

    def _check_up(self, request: ResponseRequest | SpeechRequest) -> None:
        for stage in self._needed(request):
            if not stage.up:  # it died while this response waited
                raise StageFailed(stage.name, f"The {stage.name} stage is down. Please try again in a moment.")

    def _open_mouth(self, state: ResponseState, latency_first: bool) -> None:
        """From here on the response may have sound."""
        state.chunks = ChunkBuffer(self._policies[latency_first].eased(self.traffic.speaking), self._step_bytes)
        state.on_read = functools.partial(self.traffic.moved, state)

    def _send_to(self, state: ResponseState, role: str, message: StageMessage) -> None:
        """Bring a response into a stage, which holds it until it says Released."""
        state.inside.add(role)
        self.stages[role].send(message)

    async def _turns(self, state: ResponseState, request: ResponseRequest) -> tuple[Turn, ...]:
        """The conversation for the Thinker. Sounds become text, or go to a model that hears by itself; so do images.

        One after another, so that no caller takes all bays.
        """
        parts = [part for message in request.messages for part in message.parts]
        sounds = [part.pcm for part in parts if isinstance(part, AudioPart)]
        if not self.model.sees and any(isinstance(part, ImagePart) for part in parts):
            raise InvalidRequest("This model can't see images.", param="messages")
        state.audio_in_seconds = sum(map(len, sounds)) / EARS_RATE
        heard: list[str] = []
        if sounds and not self.model.hears:
            heard = [await self.transcribe(pcm) for pcm in sounds]
            state.marks.note("ears")
            state.emit(Heard(tuple(heard)))
        for part in parts:
            if isinstance(part, ImagePart) or (isinstance(part, AudioPart) and self.model.hears):
                state.attached.append(await self.hearing.attach(part))
        texts, media = iter(heard), iter(state.attached)
        return tuple(turn for message in request.messages for turn in turns_of(message, texts, media))


def _check_speed(request: ResponseRequest | SpeechRequest) -> None:
    if not MIN_SPEED <= request.speed <= MAX_SPEED:
        raise InvalidRequest(f"The speed must be between {MIN_SPEED} and {MAX_SPEED}.", param="speed")


def turns_of(message: Message, heard: Iterator[str], attached: Iterator[int]) -> list[Turn]:
    """A message as turns: one, or one for each result of a call.

    ``heard`` gives the text of its sounds, in order; where that is at its end, and for images, ``attached`` gives the
    numbers under which they were attached.
    """
    words: list[str] = []
    calls: list[Call] = []
    results: list[Turn] = []
    media: list[Medium] = []
    for part in message.parts:
        match part:
            case AudioPart() | ImagePart():
                text = next(heard, None) if isinstance(part, AudioPart) else None
                if text is not None:
                    words.append(text)
                else:
                    media.append(Medium(next(attached), len("\n".join(words))))
            case CallPart():
                calls.append(Call(part.id, part.name, part.arguments))
            case ResultPart():
                results.append(Turn(message.role, part.output, result_of=part.id))
            case _:
                words.append(part.text)
    if results and not (words or calls or media):
        return results
    return [Turn(message.role, "\n".join(words), tuple(calls), media=tuple(media)), *results]
