"""What a realtime client saw and heard of one entry of the set, and the parts of clients that both transports share.

All times are seconds of :func:`now`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from voicechat.bench.measures import AUDIBLE, Floats
from voicechat.media.resample import to_float

Pcm = npt.NDArray[np.int16]
Event = dict[str, Any]

FRAME_S = 0.02
ROOM_LEVEL = 0.0005
"""RMS of a quiet room, full scale = 1: a live microphone is never silent."""


def now() -> float:
    """Seconds of the running event loop's clock, be it the machine's or a simulated one."""
    return asyncio.get_running_loop().time()


@dataclass(slots=True, eq=False)
class Piece:
    """At most 20 ms of a reply's sound: when it was received, when it was played (None: it never was), and which
    response it is of, if the transport tells."""

    received: float
    played: float | None
    pcm: Pcm
    reply: str | None = None
    audible: bool = False

    def __post_init__(self) -> None:
        self.audible = bool(np.abs(to_float(self.pcm)).max(initial=0.0) >= AUDIBLE)


@dataclass(frozen=True, slots=True)
class Said:
    """Where in the microphone's stream a sound was put: its first sample, and how many it has."""

    start: int
    samples: int


class LiveMicrophone:
    """The frames of a microphone at ``rate`` Hz: what :meth:`say` queues over a quiet room, and when each was sent."""

    def __init__(self, rate: int, frame_s: float = FRAME_S) -> None:
        self.rate = rate
        self.frame_s = frame_s
        self.frame = round(rate * frame_s)
        self._room = np.random.default_rng(7).standard_normal(rate).astype(np.float32) * np.float32(ROOM_LEVEL)
        self._background: Floats | None = None
        self._pending = np.zeros(0, np.float32)
        self._times: list[float] = []
        self.sent: list[Pcm] = []

    def surround(self, background: Floats | None) -> None:
        """Loop ``background`` (float32 ``[n]``) under everything from now on."""
        self._background = background

    def say(self, sound: Floats) -> Said:
        """Queue sound (float32 ``[n]``); it begins with the next frame, or after what is queued."""
        start = len(self._times) * self.frame + len(self._pending)
        self._pending = np.concatenate([self._pending, sound])
        return Said(start, len(sound))

    def next_frame(self) -> Pcm:
        """The next frame, int16 ``[frame]``; :meth:`note` is to follow when it has been sent."""
        part, self._pending = self._pending[: self.frame], self._pending[self.frame :]
        start = len(self._times) * self.frame
        places = np.arange(start, start + self.frame)
        samples = self._room[places % len(self._room)].copy()
        if self._background is not None:
            samples += self._background[places % len(self._background)]
        samples[: len(part)] += part
        return np.clip(np.round(samples * 32767), -32768, 32767).astype(np.int16)

    def note(self, pcm: Pcm, now: float) -> None:
        """A frame was sent."""
        self._times.append(now)
        self.sent.append(pcm)

    @property
    def begun(self) -> float | None:
        """When the first frame was sent."""
        return self._times[0] if self._times else None

    @property
    def late_s(self) -> float:
        """By how much the frame that was latest came after its time: the client's own fault, or its machine's."""
        due = (at - index * self.frame_s for index, at in enumerate(self._times))
        spare = [at - (self._times[0] if self._times else 0.0) for at in due]
        return max(spare, default=0.0)

    def sent_at(self, sample: int) -> float | None:
        """When the frame with that sample was sent; None if it was not yet."""
        index = sample // self.frame
        return self._times[index] if index < len(self._times) else None


class LineError(Exception):
    """A session can't be had, or broke off; ``str()`` says why."""


class News:
    """Wakes whoever waits for something to happen on a line."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Something happened."""
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Until something happens, but no longer than so."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


@dataclass(slots=True)
class Record:
    """All that came over a line: events with their time of arrival, pieces of sound, and when the client stopped its
    player (or the server did) because somebody spoke, with the response that was cut. Of each response, if sound comes
    ahead of its time: ``chunks``, (arrival, seconds), as :func:`voicechat.bench.measures.play` takes them, ``sounds``,
    all that came, and ``stopped_ms``, how much had been played when the player was stopped."""

    events: list[tuple[float, Event]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    stops: list[tuple[float, str]] = field(default_factory=list)
    chunks: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    sounds: dict[str, list[Pcm]] = field(default_factory=dict)
    stopped_ms: dict[str, int] = field(default_factory=dict)
    lost: str | None = None

    def all(self, kind: str, since: float = 0.0) -> list[tuple[float, Event]]:
        """Events of a kind that came at or after ``since``."""
        return [(at, event) for at, event in self.events if event["type"] == kind and at >= since]

    def first(self, kind: str, since: float = 0.0) -> float | None:
        """When the first of them came."""
        return next((at for at, event in self.events if event["type"] == kind and at >= since), None)

    def stop_of(self, reply: str | None) -> float | None:
        """When a response was stopped before its end: the player was, or the making of it."""
        stops = [at for at, response_id in self.stops if response_id == reply]
        for at, event in self.all("response.done"):
            if event["response"]["id"] == reply and event["response"]["status"] == "cancelled":
                stops.append(at)
        return min(stops, default=None)


class Line(Protocol):
    """One session over one transport, as a client with a microphone and a loudspeaker."""

    transport: str
    microphone: LiveMicrophone
    record: Record
    news: News

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a client event."""

    def busy(self) -> bool:
        """True while the server still makes a reply or, where it is the server that plays, plays one."""

    async def close(self) -> None:
        """End the session."""
