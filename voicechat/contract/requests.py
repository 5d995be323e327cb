"""What is asked of the cascade: conversations to be answered and texts to be spoken. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from voicechat.contract.sound import EarsPcm

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
class ImagePart:
    """An image of a message: ``data`` is a whole file, such as a PNG or a JPEG, as it came; nobody has looked into
    it."""

    data: bytes


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


Part = TextPart | AudioPart | ImagePart | CallPart | ResultPart


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
    ``speed`` is the tempo, from :data:`MIN_SPEED` to :data:`MAX_SPEED`: all sound that comes of the response has it.
    ``must_call`` names the one tool that is to be called. A call comes as text, in the form of
    :mod:`voicechat.contract.tools`, from whatever model; callers take it out of the text.
    ``patience``: seconds that it may wait for a stage that is just being started again; and where it has some, it also
    waits for a place as long as the server lets any, where others are told at once that it would be in vain.
    """

    messages: tuple[Message, ...]
    audio: bool = True
    voice: str | None = None
    latency_first: bool = True
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    must_call: str | None = None
    speed: float = 1.0
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A given text to be spoken, of any length. ``latency_first``, ``speed`` and ``voice`` are as in
    :class:`ResponseRequest`.

    ``seed`` fixes the Talker's sampling; ``None`` leaves it free. ``patience`` is as in :class:`ResponseRequest`.
    """

    text: str
    voice: str | None = None
    latency_first: bool = True
    seed: int | None = None
    speed: float = 1.0
    patience: float = 0.0
