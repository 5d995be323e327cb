"""What the faces know of the cascade: requests, events and errors. Pure data, no I/O.

A *response* is one run of Thinker -> Talker -> VoiceBox. A face builds a :class:`ResponseRequest`, calls
:meth:`Cascade.respond` and iterates over the events of the :class:`Response` that it gets at once.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

PCM_RATE = 24_000
"""Sample rate in Hz of every sound that leaves the cascade (int16, mono)."""

EARS_RATE = 16_000
"""Sample rate in Hz of every sound that enters the cascade (float32, mono, [-1, 1])."""

Pcm = npt.NDArray[np.int16]
EarsPcm = npt.NDArray[np.float32]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of a message."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class AudioPart:
    """Sound of a message: ``pcm`` is float32 mono at :data:`EARS_RATE`, shape ``[samples]``."""

    pcm: EarsPcm


@dataclass(frozen=True, slots=True)
class CallPart:
    """An earlier call of a tool by the assistant; ``id`` ties its result to it, ``arguments`` is JSON as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ResultPart:
    """What came of an earlier call; the only part of its message, whose role is ``user``."""

    id: str
    output: str


Part = TextPart | AudioPart | CallPart | ResultPart


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation; parts keep their order."""

    role: Role
    parts: tuple[Part, ...]

    @classmethod
    def text(cls, role: Role, text: str) -> Message:
        """A message of one text part."""
        return cls(role, (TextPart(text),))


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call; ``parameters`` is its JSON schema."""

    name: str
    description: str | None = None
    parameters: Any = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the Thinker samples. ``None`` means the model's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """One response to be made.

    ``audio`` False runs the Thinker only. ``latency_first`` picks small growing VoiceBox chunks, else large ones.
    ``must_call`` names the one tool that is to be called. A call comes as text, in the form of
    :mod:`voicechat.cascade.tools`, from whatever model; callers take it out of the text.
    """

    messages: tuple[Message, ...]
    audio: bool = True
    voice: str | None = None
    latency_first: bool = True
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    must_call: str | None = None


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A given text to be spoken, of any length. ``latency_first`` and ``voice`` are as in :class:`ResponseRequest`.

    ``seed`` fixes the Talker's sampling; ``None`` leaves it free.
    """

    text: str
    voice: str | None = None
    latency_first: bool = True
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of one response: Thinker tokens in and out; speech steps out (one per 40 ms of sound); sound heard."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    speech_tokens: int = 0
    audio_in_seconds: float = 0.0
    audio_out_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds since the request entered the cascade; ``None`` if the stage did not run.

    ``handoff_us`` is the median time in microseconds from a row's announcement to its being usable in the Talker.
    """

    ears: float | None = None
    thinker_first_token: float | None = None
    thinker_done: float | None = None
    talker_first_code: float | None = None
    talker_first_chunk: float | None = None
    voicebox_first_chunk: float | None = None
    first_audio: float | None = None
    done: float | None = None
    handoff_us: float | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """What the ears understood of the request's audio parts, in order (sent before any :class:`TextDelta`)."""

    transcripts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the reply's text."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class AudioDelta:
    """The next piece of the reply's sound: int16 mono at :data:`PCM_RATE`, shape ``[samples]``."""

    pcm: Pcm


class FinishReason(enum.StrEnum):
    """Why a response ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a response that did not fail."""

    reason: FinishReason
    usage: Usage
    times: StageTimes


Event = Heard | TextDelta | AudioDelta | Finished


class CascadeError(Exception):
    """A response could not be made. ``str()`` is fit for the caller."""


class NotReady(CascadeError):
    """The stages are still warming up, or one is down."""


class Overloaded(CascadeError):
    """No slot became free within the bound; the caller may try again later, in ``retry_after`` seconds if known."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StageFailed(CascadeError):
    """A stage died, or answered with a fault, while the response was inside it."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


class InvalidRequest(CascadeError):
    """The request can't be served as it is. ``param`` names the field in the cascade's words: messages, voice, …"""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Response(Protocol):
    """One running response. Iterate once; the iterator raises :class:`CascadeError` if the response fails."""

    @property
    def id(self) -> str:
        """Unique identifier."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Stop all stages; the iterator then ends with ``Finished(reason=CANCELLED)``. Idempotent, returns at once."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served. ``name`` is the model id that clients use."""

    name: str
    voices: tuple[str, ...]
    default_voice: str
    sees: bool
    context_tokens: int
    created: int
    about: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Of some voices what is known, by voice: ``name``, ``description``, ``gender``, ``language``, each or none."""


class Cascade(Protocol):
    """The running stages. All methods are called on the server's event loop and never block it."""

    @property
    def model(self) -> ModelInfo:
        """The served model."""

    @property
    def ready(self) -> bool:
        """True once every stage is warm and up."""

    def respond(self, request: ResponseRequest) -> Response:
        """Start a response and return it at once (fire and forget).

        Errors, also of bad requests, come out of the iterator.
        """

    def speak(self, request: SpeechRequest) -> Response:
        """Speak a given text, and return at once. No Thinker is needed, nor need it be up.

        The events are :class:`AudioDelta` and at last :class:`Finished`; the usage counts speech steps and seconds of
        sound. Errors come out of the iterator: :class:`InvalidRequest` for a voice that is not there (``voice``) and
        for a text in which nothing can be spoken, or which is far too long (``text``); :class:`Overloaded`,
        :class:`NotReady` and :class:`StageFailed` as ever.
        """

    async def transcribe(self, pcm: EarsPcm) -> str:
        """Text of float32 mono sound at :data:`EARS_RATE`; may be cancelled. Raises :class:`CascadeError`."""
