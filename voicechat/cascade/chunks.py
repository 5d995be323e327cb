"""ChunkBuffer: the Talker makes steps one by one, the VoiceBox eats chunks of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

EASE_STEPS = 2.0
"""Steps by which each other reply in the making lengthens a reply's first chunk, where the policy does not say."""


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """How steps are cut into chunks, all counted in steps.

    The first chunk emits ``first`` steps, each next one ``growth`` times as many, at most ``largest``. Each is decoded
    with up to ``left`` steps of the past and ``right`` steps of the future as context (fewer at the reply's ends).
    ``lengths`` are those that the VoiceBox is prepared for: a reply's last chunk reaches further back to be of one of
    them, if the reply is long enough. ``ease``: steps by which each other reply lengthens the first chunk.
    """

    first: int
    growth: float
    largest: int
    left: int
    right: int
    ease: float = EASE_STEPS
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.first < 1 or self.growth < 1 or self.largest < self.first or self.left < 0 or self.right < 0:
            raise ValueError(f"not a chunk policy: {self}")

    def eased(self, others: int) -> ChunkPolicy:
        """The policy beside ``others`` replies in the making: a longer first chunk, for the second one comes later."""
        return replace(self, first=min(self.largest, self.first + int(self.ease * others)))


@dataclass(frozen=True, slots=True)
class Chunk:
    """``steps`` with their context: ``emit`` of them after the first ``left`` are new, from place ``first_step`` on.

    The ``last`` may have none: then all were given out before it was known that no more would come.
    """

    steps: bytes
    left: int
    emit: int
    first_step: int
    last: bool


class ChunkBuffer:
    """Collects one reply's steps, of ``step_bytes`` each, and cuts the next chunk when it is asked for one."""

    def __init__(self, policy: ChunkPolicy, step_bytes: int) -> None:
        self._policy = policy
        self._bytes = step_bytes
        self._held = bytearray()
        self._forgotten = 0
        self._emitted = 0
        self._size = float(policy.first)
        self._closed = False
        self._ended = False
        self._kept = max((policy.left, *policy.lengths))

    @property
    def steps(self) -> int:
        """Steps received so far."""
        return self._forgotten + len(self._held) // self._bytes

    @property
    def emitted(self) -> int:
        """Steps handed out so far."""
        return self._emitted

    @property
    def done(self) -> bool:
        """True once the reply is closed and all of it was handed out, the last chunk as such."""
        return self._closed and (self._ended or not self.steps)

    def push(self, steps: bytes) -> None:
        """Add steps. Raises ValueError after :meth:`close`, or for a part of a step."""
        if self._closed:
            raise ValueError("the reply is closed")
        if len(steps) % self._bytes:
            raise ValueError(f"{len(steps)} bytes are no whole number of steps of {self._bytes}")
        self._held += steps

    def close(self) -> None:
        """No more steps will come: what is left may be cut without its right context."""
        self._closed = True

    @property
    def ready(self) -> bool:
        """True if :meth:`pop` would return a chunk."""
        return self._next() > 0 or (self._closed and not self.done)

    def _next(self) -> int:
        """Steps that the next chunk emits; 0 if there is none yet."""
        emit, rest = int(self._size), self.steps - self._emitted
        if self._closed:
            # A tail shorter than half a chunk is not worth a chunk of its own.
            return rest if rest <= emit + emit // 2 else emit
        return emit if rest >= emit + self._policy.right else 0

    def pop(self) -> Chunk | None:
        """The next chunk, or None if there are not enough steps for it yet."""
        emit = self._next()
        if not emit:
            return self._empty_last() if self.ready else None
        policy, total = self._policy, self.steps
        end = min(total, self._emitted + emit + policy.right)
        start = self._start(end)
        first, behind = start - self._forgotten, end - self._forgotten
        chunk = Chunk(
            steps=bytes(self._held[self._bytes * first : self._bytes * behind]),
            left=self._emitted - start,
            emit=emit,
            first_step=self._emitted,
            last=self._closed and self._emitted + emit == total,
        )
        self._emitted += emit
        self._ended = chunk.last
        past = max(self._forgotten, self._emitted - self._kept)
        del self._held[: self._bytes * (past - self._forgotten)]
        self._forgotten = past
        self._size = min(self._size * policy.growth, policy.largest)
        return chunk

    def _empty_last(self) -> Chunk:
        self._ended = True
        return Chunk(b"", 0, 0, self._emitted, last=True)

    def _start(self, end: int) -> int:
        """The step from which on a chunk that ends at ``end`` is decoded."""
        start = max(0, self._emitted - self._policy.left)
        if self._closed and end == self.steps:
            fits = (end - length for length in self._policy.lengths if self._forgotten <= end - length <= start)
            return max(fits, default=start)
        return start
