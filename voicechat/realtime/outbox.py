"""What the state machines put out: server events, and effects for a shell to perform. In order, and pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from voicechat.contract.requests import ResponseRequest
from voicechat.contract.sound import Pcm

Event = dict[str, Any]
AudioFormat = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Mono sound: int16, or float32 in [-1, 1], shape ``[samples]``, at ``rate`` Hz."""

    samples: npt.NDArray[np.int16] | npt.NDArray[np.float32]
    rate: int


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """Sound as the client sent it, in the session's input format."""

    data: bytes
    format: AudioFormat


Sound = Clip | EncodedClip


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the protocol's tree a piece of output belongs."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int

    def fields(self) -> dict[str, Any]:
        """As fields of an event."""
        return {
            "response_id": self.response_id,
            "item_id": self.item_id,
            "output_index": self.output_index,
            "content_index": self.content_index,
        }


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``event`` to the client."""

    event: Event


@dataclass(frozen=True, slots=True)
class SendWithAudio:
    """Send ``event``, with the sounds put as base64 of pcm16 at 24 kHz into ``item.content[index].audio``."""

    event: Event
    sounds: Mapping[int, tuple[Sound, ...]]


@dataclass(frozen=True, slots=True)
class StartResponse:
    """Let the cascade answer ``request``; its events come back with ``generation``."""

    generation: int
    request: ResponseRequest


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """Stop it. What still comes of it is stale; the state machines drop it."""

    generation: int


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Let the ears hear ``sound``; the text comes back with ``job``."""

    job: int
    sound: Sound


@dataclass(frozen=True, slots=True)
class CancelTranscribe:
    """Nobody waits for this text any more."""

    job: int


@dataclass(frozen=True, slots=True)
class JudgeTurn:
    """Let the turn detector judge by ``sound`` (a turn up to now) whether it is over; its word comes back with
    ``job``."""

    job: int
    sound: Clip


@dataclass(frozen=True, slots=True)
class CancelJudge:
    """Nobody waits for this judgement any more."""

    job: int


@dataclass(frozen=True, slots=True)
class BeginAudio:
    """The sound of a content part begins; it is to be sent in ``format``."""

    place: Place
    format: AudioFormat = "audio/pcm"


@dataclass(frozen=True, slots=True, eq=False)
class PlayAudio:
    """The next sound of the part that was begun: int16 mono at 24 kHz."""

    place: Place
    pcm: Pcm


@dataclass(frozen=True, slots=True)
class EndAudio:
    """The part has no more sound."""

    place: Place


@dataclass(frozen=True, slots=True)
class ClearAudio:
    """What was not played yet is not to be."""


@dataclass(frozen=True, slots=True)
class HoldAudio:
    """Be silent for a moment: somebody may be interrupting. Only where the server plays."""


@dataclass(frozen=True, slots=True)
class ReleaseAudio:
    """It was nothing: go on from the very sample."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the session; ``code`` is a WebSocket close code."""

    code: int
    reason: str


Output = (
    Send
    | SendWithAudio
    | StartResponse
    | CancelResponse
    | Transcribe
    | CancelTranscribe
    | JudgeTurn
    | CancelJudge
    | BeginAudio
    | PlayAudio
    | EndAudio
    | ClearAudio
    | HoldAudio
    | ReleaseAudio
    | Close
)


class Outbox:
    """Collects outputs in order. ``ids(prefix)`` makes identifiers; ``now`` is the time in seconds of the last tick."""

    def __init__(self, ids: Callable[[str], str]) -> None:
        self.new_id = ids
        self.now = 0.0
        self._outputs: list[Output] = []

    def send(self, kind: str, **fields: Any) -> None:
        """Add a server event."""
        self._outputs.append(Send(self.event(kind, **fields)))

    def event(self, kind: str, **fields: Any) -> Event:
        """A server event, not added."""
        return {"type": kind, "event_id": self.new_id("event"), **fields}

    def error(
        self,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        client_event_id: str | None = None,
    ) -> None:
        """Add an ``error`` event; ``client_event_id`` names the client's event that caused it."""
        inner = {"type": kind, "message": message, "code": code, "param": param, "event_id": client_event_id}
        self.send("error", error=inner)

    def add(self, effect: Output) -> None:
        """Add an effect."""
        self._outputs.append(effect)

    def take(self) -> list[Output]:
        """All outputs since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs
