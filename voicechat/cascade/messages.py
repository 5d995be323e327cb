"""The control plane's messages. Small, encoded with msgspec's MessagePack; no tensor ever travels here.

``id`` is the response's number, ``slot`` and ``generation`` its lease.
"""

from __future__ import annotations

import msgspec


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# ---- to the thinker


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One message of the conversation, sound already turned into text: role and text."""

    role: str
    text: str


class Generate(_Message):
    """Write a reply. With ``rows`` the hidden states go into the slot. ``None`` asks for the model's default."""

    id: int
    turns: tuple[Turn, ...]
    rows: bool
    slot: int = -1
    generation: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Transcribe(_Message):
    """Turn ``count`` samples of a bay into text."""

    id: int
    bay: int
    count: int


# ---- to the talker


class Speak(_Message):
    """A reply is about to come: make speech tokens of its text as it arrives."""

    id: int
    slot: int
    generation: int
    voice: str
    seed: int | None = None


class Text(_Message):
    """The next pieces of the reply, one per Thinker token; ``final`` closes the text."""

    id: int
    pieces: tuple[str, ...]
    final: bool
    sent_ns: int


# ---- to the voicebox


class Decode(_Message):
    """Turn speech codes into sound: of the sound of ``codes``, ``emit`` steps after the first ``left`` go to ``start`` of the ring."""

    id: int
    slot: int
    codes: tuple[int, ...]
    left: int
    emit: int
    start: int


# ---- to any stage


class Abort(_Message):
    """Stop a request; answered by :class:`Released` like every other end."""

    id: int


class Shutdown(_Message):
    """Leave in good order."""


# ---- from any stage


class Ready(_Message):
    """Warm and waiting. ``facts`` holds what the stage wants known (model sizes, seconds of warm-up)."""

    facts: dict[str, str | int | float]


class Failed(_Message):
    """A request ended by a fault of the stage; ``invalid`` if the request itself was at fault (``param``, ``code`` as in the API)."""

    id: int
    message: str
    invalid: bool = False
    param: str | None = None
    code: str | None = None


class Released(_Message):
    """The stage's host is done with a request. The slot is free of the worker once its ack lane reads ``ack`` (0: at once)."""

    id: int
    ack: int


# ---- from the thinker


class Piece(_Message):
    """Newly written text: one piece per token (a piece may be empty). ``sent_ns``: monotonic clock at sending."""

    id: int
    pieces: tuple[str, ...]
    sent_ns: int


class Written(_Message):
    """The reply's end. ``reason`` is ``stop``, ``length`` or ``abort``."""

    id: int
    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Transcript(_Message):
    """What a sound said, and how many seconds it took to find out."""

    id: int
    text: str
    seconds: float


# ---- from the talker


class Codes(_Message):
    """Newly made speech codes. ``rows_ready_us``: microseconds from a row's announcement to its being usable, one per row since the last message."""

    id: int
    codes: tuple[int, ...]
    rows_ready_us: tuple[float, ...] = ()


class Spoken(_Message):
    """The last speech code was sent. ``reason``: ``end``, ``length`` (the bound by text length was met) or ``abort``."""

    id: int
    reason: str


# ---- from the voicebox


class Sound(_Message):
    """``count`` samples lie at ``start`` of the slot's ring. ``id`` and ``start`` are those of the :class:`Decode`."""

    id: int
    start: int
    count: int


ToThinker = Generate | Transcribe | Abort | Shutdown
ToTalker = Speak | Text | Abort | Shutdown
ToVoicebox = Decode | Shutdown
FromThinker = Ready | Failed | Released | Piece | Written | Transcript
FromTalker = Ready | Failed | Released | Codes | Spoken
FromVoicebox = Ready | Failed | Sound
Message = ToThinker | ToTalker | ToVoicebox | FromThinker | FromTalker | FromVoicebox
