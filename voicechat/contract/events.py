"""What comes of a response: text, sound, and at last how it ended. Pure data."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from voicechat.contract.sound import Pcm


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of one response: Thinker tokens in and out; speech steps out; sound heard."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    speech_tokens: int = 0
    audio_in_seconds: float = 0.0
    audio_out_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds since the request entered the cascade; ``None`` if the stage did not run. ``slot``: when it got its place
    in the pool.

    ``handoff_us`` is the median time in microseconds from a row's announcement to its being usable in the Talker.
    """

    ears: float | None = None
    slot: float | None = None
    thinker_first_token: float | None = None
    thinker_done: float | None = None
    talker_first_code: float | None = None
    talker_first_chunk: float | None = None
    talker_done: float | None = None
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
