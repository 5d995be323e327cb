"""The control plane's messages. Small, encoded with msgspec's MessagePack; no tensor ever travels here.

``id`` is the response's number, ``slot`` and ``generation`` its lease.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from voicechat.contract.hearing import PLAIN, HearingOptions, Transcription


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of the tagged messages."""


# ---- to the thinker


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call of a tool. ``arguments`` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class Medium(msgspec.Struct, frozen=True, array_like=True):
    """A sound or an image of a turn: the number under which it was attached, and the place in the turn's text."""

    number: int
    at: int


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One message of the conversation. Sound is text already, unless the model hears by itself.

    ``calls`` are those of an assistant's turn; with ``result_of`` the text is what came of the call of that id.
    ``media`` are in order; each was brought by an :class:`Attach` before.
    """

    role: str
    text: str
    calls: tuple[Call, ...] = ()
    result_of: str | None = None
    media: tuple[Medium, ...] = ()


class ToolSpec(msgspec.Struct, frozen=True, array_like=True):
    """A tool that may be called; ``parameters`` is its JSON schema."""

    name: str
    description: str | None = None
    parameters: Any = None


class Generate(_Message, frozen=True):
    """Write a reply. With ``rows`` it will be spoken, and hidden states, if there are any, go into the slot.

    ``None`` asks for the model's default.
    """

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
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    must_call: str | None = None


class Attach(_Message, frozen=True):
    """Take a sound or an image out of a bay: its first ``size`` bytes, by :class:`Attached` when that is done.

    The one request that names ``id`` uses it up; :class:`Abort` does so without.
    """

    id: int
    kind: Literal["sound", "image"]
    bay: int
    size: int


class Transcribe(_Message, frozen=True):
    """Turn ``count`` samples of a bay into text."""

    id: int
    bay: int
    count: int
    options: HearingOptions = PLAIN


# ---- to the talker


class Speak(_Message, frozen=True):
    """A text is about to come: make speech tokens of it as it arrives, in the voice of this number.

    Without ``rows`` there are no hidden states.
    """

    id: int
    slot: int
    generation: int
    voice: int
    seed: int | None = None
    rows: bool = True


class Text(_Message, frozen=True):
    """The next pieces of the text, one per Thinker token if there are rows; ``final`` closes the text.

    ``note``: what the family's prompt has to say to its Talker, once; see :class:`voicechat.contract.family.Prompt`.
    """

    id: int
    pieces: tuple[str, ...]
    final: bool
    sent_ns: int
    note: bytes = b""


# ---- to the voicebox


class Decode(_Message, frozen=True):
    """Turn steps into sound and let it out: of the reply the samples from ``start`` on, as the steps make them, are
    those of ``emit`` steps after the first ``left``.

    ``steps`` are of :attr:`voicechat.contract.family.Facts.step_bytes` bytes each; ``state`` is that of the
    :class:`Sound` before, empty for a reply's first chunk, which has ``start`` 0. With its ``last``, which may have no
    steps at all, everything that was held back of it comes out. ``speed`` is the tempo at which it is to be heard.
    Answered by :class:`Sound` or :class:`Failed`.
    """

    id: int
    slot: int
    steps: bytes
    left: int
    emit: int
    start: int
    voice: int = 0
    """Number of the voice."""
    state: bytes = b""
    last: bool = False
    speed: float = 1.0


# ---- to any stage


class Abort(_Message, frozen=True):
    """Stop a request; answered by :class:`Released` like every other end.

    The VoiceBox forgets what it holds of the reply, and answers a chunk of it that is inside with :class:`Failed`.
    """

    id: int


class Shutdown(_Message, frozen=True):
    """Leave in good order."""


class Profile(_Message, frozen=True):
    """Look at your own work for ``seconds``, then for ``gpu_seconds`` at what it does on the GPU."""

    seconds: float
    gpu_seconds: float


class Ping(_Message, frozen=True):
    """Say that you are well."""

    number: int


# ---- from any stage


class Ready(_Message, frozen=True):
    """Warm and waiting. ``facts`` holds what the stage wants known (model sizes, seconds of warm-up)."""

    facts: dict[str, str | int | float]


class Pong(_Message, frozen=True):
    """The answer to :class:`Ping`: the stage is at work, its engine included."""

    number: int


class Profiled(_Message, frozen=True):
    """The answer to :class:`Profile`; see ``voicechat.stages.host``."""

    report: dict[str, Any]


class Failed(_Message, frozen=True):
    """A request ended by a fault of the stage; ``invalid`` if the request was at fault (``param``, ``code``).

    A stage that only passes requests on may be ``unreachable`` or ``overloaded`` (``retry_after`` seconds, if known).
    """

    id: int
    message: str
    invalid: bool = False
    param: str | None = None
    code: str | None = None
    unreachable: bool = False
    overloaded: bool = False
    retry_after: float | None = None


class Released(_Message, frozen=True):
    """The stage's host is done with a request; the worker is once the slot's ack lane reads ``ack`` (0: at once)."""

    id: int
    ack: int


# ---- from the thinker (sounds: from the stage that has the ears)


class Piece(_Message, frozen=True):
    """Newly written text: one piece per token (a piece may be empty). ``sent_ns``: monotonic clock at sending.

    ``note`` is as in :class:`Text`, with the first.
    """

    id: int
    pieces: tuple[str, ...]
    sent_ns: int
    note: bytes = b""


class Called(_Message, frozen=True):
    """The reply calls tools: a part of it that is not spoken. All calls of a reply come at once."""

    id: int
    calls: tuple[Call, ...]


class Written(_Message, frozen=True):
    """The reply's end. ``reason`` is ``stop``, ``length`` or ``abort``."""

    id: int
    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Attached(_Message, frozen=True):
    """The bay is free again."""

    id: int


class Transcript(_Message, frozen=True):
    """What a sound said, and how many seconds it took to find out."""

    id: int
    heard: Transcription
    seconds: float


# ---- from the talker


class Codes(_Message, frozen=True):
    """Newly made steps of speech, :attr:`voicechat.contract.family.Facts.step_bytes` bytes each.

    ``rows_ready_us``: for each text message since the last steps, microseconds from the announcement of its token by
    the Thinker to its rows lying in the pool.
    """

    id: int
    steps: bytes
    rows_ready_us: tuple[float, ...] = ()


class Spoken(_Message, frozen=True):
    """The last code was sent. ``reason``: ``end``, or ``length`` if the bound by the text's length was met."""

    id: int
    reason: str


# ---- from the voicebox


class Sound(_Message, frozen=True):
    """The answer to :class:`Decode`: ``count`` samples lie at ``start`` of the slot's ring, which is their place in
    what is heard of the reply.

    They may be more or fewer than were decoded: the tempo changes them, and some are held back until the next.

    ``state`` is the family's own, for the reply's next :class:`Decode`.
    """

    id: int
    start: int
    count: int
    state: bytes


ToAny = Shutdown | Ping | Profile
FromAny = Ready | Pong | Profiled | Failed
ToThinker = ToAny | Generate | Attach | Transcribe | Abort
ToEars = ToAny | Transcribe | Abort
ToTalker = ToAny | Speak | Text | Abort
ToVoicebox = ToAny | Decode | Abort
FromThinker = FromAny | Released | Attached | Piece | Called | Written | Transcript
FromEars = FromAny | Transcript
FromTalker = FromAny | Released | Codes | Spoken
FromVoicebox = FromAny | Sound
Message = ToThinker | ToTalker | ToVoicebox | FromThinker | FromTalker | FromVoicebox
