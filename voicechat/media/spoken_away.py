"""What a client plays that plays by itself: what :class:`~voicechat.media.echo.EchoGuard` is told was sent."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from voicechat.contract.sound import FRAME_MS, PCM_RATE, Pcm

LATE_S = 2.0
"""A microphone that comes through the network may be so far behind the clock; one that was silent for longer begins
anew, as a client's does that sends sound only while a key is pressed."""

AHEAD_S = 60
"""So much of what a client has yet to play is kept."""

_PCM_FRAME = PCM_RATE * FRAME_MS // 1000


class SpokenAway:
    """What a client plays by itself, as far as the server can know: what it was sent, one after the other, from when it
    was sent. Its time is that of its microphone while sound comes from there, up to ``LATE_S`` behind the clock;
    else that of the clock (``now``, in seconds), by which what must have been played is discarded."""

    def __init__(self) -> None:
        self._queue: deque[Pcm] = deque()
        self._left = 0  # samples in the queue
        self._ends = -math.inf  # when the last of them is played
        self._heard = -math.inf  # when the microphone was last heard

    @property
    def left_s(self) -> float:
        """Seconds that are still to be played."""
        return self._left / PCM_RATE

    def push(self, pcm: Pcm, now: float) -> None:
        """More is sent: int16 ``[samples]`` at 24 kHz. What is played more than ``AHEAD_S`` from now is taken for
        silence."""
        self._discard(now)
        room = max(0, AHEAD_S * PCM_RATE - self._left)
        kept, beyond = pcm[:room], len(pcm[room:])
        if len(kept):
            self._queue.append(kept.copy() if beyond else kept)
        if beyond:
            self._queue.append(np.broadcast_to(np.int16(0), beyond))  # takes no memory
        self._left += len(pcm)
        self._ends = max(self._ends, now) + len(pcm) / PCM_RATE

    def clear(self) -> None:
        """The client stops."""
        self._queue.clear()
        self._left = 0
        self._ends = -math.inf

    def next_frame(self, now: float) -> Pcm:
        """The next 20 ms: int16 ``[480]``, silence where nothing is left."""
        self._discard(now)
        self._heard = now
        parts = self._taken(_PCM_FRAME)
        return np.concatenate([*parts, np.zeros(_PCM_FRAME - sum(map(len, parts)), np.int16)])

    def _discard(self, now: float) -> None:
        """Drop what was played by now."""
        behind = LATE_S if now - self._heard <= LATE_S else 0.0
        left = max(0.0, self._ends + behind - now) * PCM_RATE
        if self._left > left:
            self._taken(self._left - round(left))

    def _taken(self, count: int) -> list[Pcm]:
        """The first ``count`` samples, or what there is."""
        parts: list[Pcm] = []
        while count and self._queue:
            first = self._queue.popleft()
            if len(first) > count:
                self._queue.appendleft(first[count:])
            parts.append(first[:count])
            count -= len(parts[-1])
            self._left -= len(parts[-1])
        return parts
