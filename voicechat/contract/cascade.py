"""What the faces know of the cascade.

A *response* is one run of Thinker -> Talker -> VoiceBox. A face builds a :class:`ResponseRequest`, calls
:meth:`Cascade.respond` and iterates over the events of the :class:`Response` that it gets at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from voicechat.contract.events import Event
from voicechat.contract.hearing import ENGLISH, PLAIN, EarsFacts, HearingOptions, Transcription
from voicechat.contract.requests import ResponseRequest, SpeechRequest
from voicechat.contract.sound import EarsPcm


class Response(Protocol):
    """One running response. Iterate once; the iterator raises :class:`CascadeError` if the response fails."""

    @property
    def id(self) -> str:
        """Unique identifier."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Stop all stages; the iterator then ends with ``Finished(reason=CANCELLED)``. Idempotent, returns at once."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The mark in all sound that is made: 16 bits that name the deployment, and the public name of the key."""

    payload: int
    key_id: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served. ``name`` is the model id that clients use."""

    name: str
    voices: tuple[str, ...]
    default_voice: str
    sees: bool
    context_tokens: int
    created: int
    hears: bool = False
    """Whether sounds go to the model itself. If not, they are transcribed first."""
    most_images: int | None = None
    """Images of one request at most, where the model sees; None: as many as the context holds."""
    most_sounds: int | None = None
    """Sounds of one request at most, where the model hears by itself; None: as many as the context holds."""
    about: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Of some voices what is known, by voice: ``name``, ``description``, ``gender``, ``language``, each or none."""
    watermark: Watermark | None = None
    """None: sound leaves unmarked."""
    ears: EarsFacts = ENGLISH


class Operations(Protocol):
    """What operators and benchmarks may look at."""

    def stats(self) -> dict[str, Any]:
        """How it is doing now, as JSON: ``ready``, ``stages``, ``processes``, ``slots``, ``pool``."""

    async def profile(self, seconds: float, gpu_seconds: float) -> dict[str, Any]:
        """Where the time goes in the next seconds, as JSON. Slows everything for a while."""


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

    async def hear(self, pcm: EarsPcm, options: HearingOptions = PLAIN) -> Transcription:
        """As :meth:`transcribe`, with all that the ears can tell.

        :class:`InvalidRequest` for a ``language`` that they don't know, and for a translation (``model``) if they make
        none.
        """
