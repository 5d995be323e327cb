"""What the listener hears, and when: PCM of any length in, one 20 ms frame per tick of an absolute clock out. Pure.

Generation and playback are two things: a reply has been played when its last sample has left here, not when it was
made. :class:`Playout` holds the sound and counts to the sample what left; :class:`PlayoutClock` says when each frame is
due, from one origin, so that waiting errors never add up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from voicechat.contract.sound import PCM_RATE, Pcm

FRAME_MS = 20
FRAME_SAMPLES = PCM_RATE * FRAME_MS // 1000
"""Samples of one frame: 480 at 24 kHz."""

KEPT_SAMPLES = PCM_RATE * 4
"""Of what has left, so much can be played again."""

FADE_SAMPLES = PCM_RATE * 5 // 1000
"""A reply that is cut off fades out over 5 ms, so that it does not click."""

SILENCE: Pcm = np.zeros(FRAME_SAMPLES, np.int16)
"""The frame that leaves while nothing is played: always this very one, so that nobody has to look into it."""
SILENCE.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False)
class PlayoutFrame:
    """What leaves at one tick. ``pcm`` is int16, shape ``[480]``, silent where there is nothing to play.

    ``started``: holds the first sample of a stream. ``drained``: the stream's last sample has left, in this frame or,
    if the stream was ended later than that, before it. ``underrun``: the stream is not over but had too little sound.
    """

    pcm: Pcm
    started: bool = False
    drained: bool = False
    underrun: bool = False


class Playout:
    """Plays one stream (reply) at a time: ``begin``, ``push``..., ``finish``; ``clear`` stops it at once."""

    def __init__(self) -> None:
        self._queue: deque[Pcm] = deque()
        self._left: deque[Pcm] = deque()
        self._left_samples = 0
        self._queued = 0
        self._pushed = 0
        self._played = 0
        self._open = False
        self._finished = False
        self._fade: Pcm | None = None
        self._starved = False
        self._underruns = 0
        self._underrun_frames = 0
        self._held = self._faded = self._begun = False

    @property
    def held(self) -> bool:
        """True between :meth:`hold` and :meth:`release`."""
        return self._held

    @property
    def active(self) -> bool:
        """True from ``begin`` until the stream is drained or cleared."""
        return self._open

    @property
    def queued(self) -> int:
        """Samples that wait to be played."""
        return self._queued

    @property
    def pushed(self) -> int:
        """Samples of the current (or last) stream so far."""
        return self._pushed

    @property
    def played(self) -> int:
        """Samples of the current (or last) stream that have left."""
        return self._played

    @property
    def underruns(self) -> int:
        """How often the current (or last) stream ran dry after it had started."""
        return self._underruns

    @property
    def underrun_frames(self) -> int:
        """Frames that were silent, in whole or in part, because the current (or last) stream had run dry."""
        return self._underrun_frames

    def begin(self) -> None:
        """Begin a new stream. What is left of the one before is dropped."""
        self.clear()
        self._open, self._finished, self._starved, self._begun = True, False, False, False
        self._pushed = self._played = self._underruns = self._underrun_frames = 0
        self._left.clear()
        self._left_samples = 0

    def push(self, pcm: Pcm) -> None:
        """Add sound (int16, shape ``[samples]``) to the stream. Raises RuntimeError if none is open."""
        if not self._open or self._finished:
            raise RuntimeError("no stream is open for more sound")
        if len(pcm):
            self._queue.append(pcm)
            self._queued += len(pcm)
            self._pushed += len(pcm)

    def finish(self) -> None:
        """No more sound will come for the stream."""
        if self._open:
            self._finished = True

    def clear(self) -> int:
        """Stop the stream at once, without ``drained``; how many of its samples were played."""
        if self._open and self._played and self._queued and not self._faded:
            self._fade = self._take(min(FADE_SAMPLES, self._queued))
            self._played -= len(self._fade)
        self._queue.clear()
        self._queued = 0
        self._open = self._held = self._faded = False
        return self._played

    def hold(self) -> None:
        """Be silent for now, with a short fade; the stream waits at the very sample."""
        if self._open:
            self._held = True

    def release(self) -> None:
        """Go on, with a short fade, where :meth:`hold` stopped."""
        self._held = False

    def rewind(self, samples: int) -> int:
        """The last ``samples`` that left were not heard: play them again. How many these are: those of this stream, of
        the last 4 s."""
        if not self._open:
            return 0
        wanted = samples = min(samples, self._left_samples)
        while wanted > 0:
            piece = self._left.pop()
            if len(piece) > wanted:
                self._left.append(piece[: len(piece) - wanted])
                piece = piece[len(piece) - wanted :]
            self._queue.appendleft(piece)
            wanted -= len(piece)
        self._left_samples -= samples
        self._queued += samples
        self._played -= samples
        self._faded = self._played > 0  # so that it begins softly
        return samples

    def next_frame(self) -> PlayoutFrame:
        """The frame of this tick."""
        if not self._open and self._fade is None:
            return PlayoutFrame(SILENCE)
        pcm = np.zeros(FRAME_SAMPLES, dtype=np.int16)
        if self._fade is not None:
            ramp = np.linspace(1.0, 0.0, len(self._fade), endpoint=False)
            pcm[: len(self._fade)] = (self._fade * ramp).astype(np.int16)
            self._fade = None
            return PlayoutFrame(pcm)
        if not self._open:
            return PlayoutFrame(pcm)
        if self._held:
            if not self._faded and self._played:
                head = self._peek(FADE_SAMPLES)
                pcm[: len(head)] = (head * np.linspace(1.0, 0.0, len(head), endpoint=False)).astype(np.int16)
            self._faded = True
            return PlayoutFrame(pcm)
        started = not self._begun and self._queued > 0
        self._begun |= started
        sound = self._take(min(FRAME_SAMPLES, self._queued))
        pcm[: len(sound)] = sound
        if self._faded:
            head = pcm[: min(FADE_SAMPLES, len(sound))]
            head[:] = head * np.linspace(0.0, 1.0, len(head), endpoint=False)
            self._faded = False
        drained = self._finished and self._queued == 0
        underrun = not self._finished and self._played > 0 and len(sound) < FRAME_SAMPLES
        if underrun:
            self._underrun_frames += 1
            self._underruns += not self._starved
        self._starved = underrun
        if drained:
            self._open = False
        return PlayoutFrame(pcm, started=started, drained=drained, underrun=underrun)

    def _peek(self, samples: int) -> Pcm:
        """The next samples, fewer if there are fewer in the first piece; they stay."""
        return self._queue[0][:samples] if self._queue else np.zeros(0, dtype=np.int16)

    def _take(self, samples: int) -> Pcm:
        parts: list[Pcm] = []
        needed = samples
        while needed:
            head = self._queue.popleft()
            if len(head) > needed:
                self._queue.appendleft(head[needed:])
                head = head[:needed]
            parts.append(head)
            needed -= len(head)
        self._queued -= samples
        self._played += samples
        self._left.extend(parts)
        self._left_samples += samples
        while self._left and self._left_samples - len(self._left[0]) >= KEPT_SAMPLES:
            self._left_samples -= len(self._left.popleft())
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int16)


class PlayoutClock:
    """Deadlines of the frames, every 20 ms from one origin. Times are seconds of the caller's clock.

    A caller that is late sends what is due at once, and so catches up. If it is later than ``max_lag``, the origin
    moves instead: a long stall delays the sound once, and does not end in a burst.
    """

    def __init__(self, max_lag: float = 0.2) -> None:
        self._max_lag = max_lag
        self._origin: float | None = None
        self._ticks = 0
        self._slips = 0

    @property
    def slips(self) -> int:
        """How often the origin had to move."""
        return self._slips

    @property
    def ticks(self) -> int:
        """Frames that were due so far; the next one's timestamp is ``ticks * 20 ms``."""
        return self._ticks

    def wait(self, now: float) -> float:
        """Seconds to wait from ``now`` until the next frame is due (0 if it is); counts that frame."""
        if self._origin is None:
            self._origin = now
        due = self._origin + self._ticks * FRAME_MS / 1000
        if now - due > self._max_lag:
            self._origin += now - due
            self._slips += 1
            due = now
        self._ticks += 1
        return max(0.0, due - now)
