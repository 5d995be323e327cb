"""Where the speaker's turns begin, pause and end: a pure state machine. Frames and ticks in, effects out.

Time is counted in frames of 20 ms, not read from a clock. A turn opens when enough of the last frames were voiced,
and closes after ``silence_ms`` without voice. In between, at ``pause_ms``, the machine says that the turn *may* be over
and hands out its sound, so that costly work can begin early; if the speaker goes on, it says so and the work is void.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

import numpy as np

from voicechat.contract.sound import FRAME_MS, FRAME_SAMPLES, EarsPcm
from voicechat.realtime.policy import SegmenterSettings


class EndReason(enum.StrEnum):
    """Why a turn ended."""

    SILENCE = "silence"
    TOO_LONG = "too_long"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class SpeechSuspected:
    """While the other side speaks: this may become a turn. :class:`SpeechStarted` follows, or
    :class:`SpeechDismissed`."""


@dataclass(frozen=True, slots=True)
class SpeechDismissed:
    """It was nothing: a cough, say."""


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """A turn has opened; its sound begins ``start_ms`` after the first frame ever."""

    start_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class SpeechPaused:
    """The turn may be over. ``audio`` is what :class:`TurnEnded` will carry if the speaker does not go on."""

    audio: EarsPcm


@dataclass(frozen=True, slots=True)
class SpeechResumed:
    """The speaker went on after a :class:`SpeechPaused`."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnEnded:
    """The turn is over. ``audio`` is float32 mono 16 kHz: prefix, speech, and up to ``pause_ms`` of what followed.

    ``end_ms`` is the end of the last voiced frame, ``silence_ms`` how long ago that was when the turn was closed.
    """

    audio: EarsPcm
    start_ms: int
    end_ms: int
    silence_ms: int
    reason: EndReason


@dataclass(frozen=True, slots=True)
class TurnDiscarded:
    """The turn held too little voice to be one; ``end_ms`` as in :class:`TurnEnded`."""

    end_ms: int


Effect = SpeechSuspected | SpeechDismissed | SpeechStarted | SpeechPaused | SpeechResumed | TurnEnded | TurnDiscarded


@dataclass(slots=True)
class _Turn:
    """The open turn. Indices count frames since the first frame of the turn's sound."""

    start: int  # frames since the beginning of time
    frames: list[EarsPcm]
    spoken_until: int  # end of the last frame that counts as voice
    voiced: int
    paused: bool = False
    announced: bool = False  # the pause was told of: not if the turn holds too little voice anyway
    enough: int | None = None  # frames of silence that end it, if fewer than by the settings
    run: int = 0  # voiced frames in a row, while paused

    def audio(self, tail: int) -> EarsPcm:
        return np.concatenate(self.frames[: self.spoken_until + tail])


class Segmenter:
    """Cuts one microphone's frames into turns. No I/O, no clock: the same frames always give the same effects."""

    def __init__(self, settings: SegmenterSettings | None = None) -> None:
        self.strict = False
        """True while the other side speaks: the strict onset applies."""
        self._settings = settings or SegmenterSettings()
        self._count = 0
        self._recent: deque[tuple[EarsPcm, bool]] = deque()
        self._turn: _Turn | None = None
        self._ended: _Turn | None = None  # the last turn, with what came after it, while it may be taken back
        self._suspected: int | None = None  # frames since speech was suspected
        self._wary = True  # False after a suspicion that led nowhere, until it is quiet

    @property
    def suspecting(self) -> bool:
        """True between :class:`SpeechSuspected` and what follows it."""
        return self._suspected is not None

    @property
    def open(self) -> bool:
        """True while a turn is open, pauses included."""
        return self._turn is not None

    @property
    def silence_ms(self) -> int:
        """Milliseconds since the last voice of the open turn; 0 if none is open."""
        turn = self._turn
        return 0 if turn is None else _ms(len(turn.frames) - turn.spoken_until)

    @property
    def voiced_ms(self) -> int:
        """Milliseconds of voice in the open turn; 0 if none is open."""
        return 0 if self._turn is None else _ms(self._turn.voiced)

    def sound(self) -> EarsPcm:
        """All sound of the open turn so far, the silence at its end included. Raises RuntimeError if none is open."""
        if self._turn is None:
            raise RuntimeError("no turn is open")
        return np.concatenate(self._turn.frames)

    @property
    def settings(self) -> SegmenterSettings:
        """The settings in force; may be replaced at any time."""
        return self._settings

    @settings.setter
    def settings(self, settings: SegmenterSettings) -> None:
        self._settings = settings

    def push(self, frame: EarsPcm, voiced: bool) -> list[Effect]:
        """Take the next frame (float32, shape ``[320]``); what follows from it, in order."""
        if frame.shape != (FRAME_SAMPLES,):
            raise ValueError(f"a frame has {FRAME_SAMPLES} samples, not {frame.shape}")
        self._count += 1
        if self._turn is None:
            return self._push_idle(frame, voiced)
        return self._push_turn(self._turn, frame, voiced)

    def tick(self, frames: int = 1) -> list[Effect]:
        """Time passed in which no sound came: as many silent frames."""
        effects: list[Effect] = []
        for _ in range(frames):
            effects += self.push(np.zeros(FRAME_SAMPLES, dtype=np.float32), voiced=False)
        return effects

    def commit(self) -> Effect:
        """The open turn ends here, because somebody who knows says so: it is one however little voice it holds, and it
        can't be taken back. Raises RuntimeError if none is open."""
        if self._turn is None:
            raise RuntimeError("no turn is open")
        return self._close(self._turn, EndReason.COMMITTED)

    def expect_end(self, silence_ms: int) -> None:
        """During a pause: the turn seems to be over, so that ``silence_ms`` end it, unless the speaker goes on."""
        if self._turn is not None and self._turn.paused:
            self._turn.enough = _frames(max(silence_ms, FRAME_MS))

    def reopen(self) -> bool:
        """The turn that has just opened goes on with the last one: they are one. False if that was forgotten."""
        turn, ended, self._ended = self._turn, self._ended, None
        if turn is None or ended is None:
            return False
        ended.voiced += turn.voiced
        ended.spoken_until, ended.run = len(ended.frames), 0
        ended.paused = ended.announced = False
        ended.enough = None
        self._turn = ended
        return True

    def forget(self) -> None:
        """The last turn can't be taken back any more."""
        self._ended = None

    def clear(self) -> list[Effect]:
        """Forget all sound held, an open turn included."""
        turn, self._turn = self._turn, None
        self._ended = None
        self._recent.clear()
        effects: list[Effect] = [] if self._suspected is None else [SpeechDismissed()]
        self._suspected = None
        return effects if turn is None else [*effects, TurnDiscarded(_ms(turn.start + turn.spoken_until))]

    def _push_idle(self, frame: EarsPcm, voiced: bool) -> list[Effect]:
        settings, recent = self._settings, self._recent
        if self._ended is not None:
            self._ended.frames.append(frame)
        window = _frames(settings.strict_window_ms if self.strict else settings.onset_window_ms)
        needed = _frames(settings.strict_onset_ms if self.strict else settings.onset_ms)
        if self._ended is not None and not self.strict:
            needed = min(needed, _frames(settings.resume_ms))  # as if the pause had gone on
        recent.append((frame, voiced))
        while len(recent) > window + _frames(settings.prefix_ms):
            recent.popleft()
        flags = [flag for _, flag in recent]
        considered = flags[-window:]
        if not voiced or sum(considered) < needed:
            return self._suspect(flags)
        self._suspected = None
        onset = len(flags) - len(considered) + considered.index(True)
        first = max(0, onset - _frames(settings.prefix_ms))
        frames = [sound for sound, _ in recent][first:]
        turn = _Turn(
            start=self._count - len(frames), frames=frames, spoken_until=len(frames), voiced=sum(flags[onset:])
        )
        self._turn = turn
        recent.clear()
        return [SpeechStarted(_ms(turn.start)), *self._limit(turn)]

    def _suspect(self, flags: list[bool]) -> list[Effect]:
        """Begin or end a suspicion. What would open a turn if nobody else spoke is suspect."""
        settings = self._settings
        quiet = not any(flags[-_frames(settings.dismiss_ms) :])
        self._wary = self._wary or quiet
        if self._suspected is not None:
            self._suspected += 1
            if quiet or not self.strict or self._suspected >= _frames(settings.suspect_ms):
                self._suspected, self._wary = None, quiet
                return [SpeechDismissed()]
            return []
        window, needed = _frames(settings.onset_window_ms), _frames(settings.onset_ms)
        if self.strict and self._wary and flags[-1] and sum(flags[-window:]) >= needed:
            self._suspected = 0
            return [SpeechSuspected()]
        return []

    def _push_turn(self, turn: _Turn, frame: EarsPcm, voiced: bool) -> list[Effect]:
        settings = self._settings
        turn.frames.append(frame)
        turn.voiced += voiced
        effects: list[Effect] = []
        if voiced:
            turn.run += 1
            if not turn.paused:
                turn.spoken_until = len(turn.frames)
            elif turn.run >= _frames(settings.resume_ms):
                turn.paused = False
                turn.enough = None
                turn.spoken_until = len(turn.frames)
                if turn.announced:
                    turn.announced = False
                    effects.append(SpeechResumed())
        else:
            turn.run = 0
            silence = len(turn.frames) - turn.spoken_until
            needed = _frames(settings.silence_ms)
            if silence >= (needed if turn.enough is None else min(needed, turn.enough)):
                return [self._close(turn, EndReason.SILENCE)]
            if not turn.paused and silence >= _frames(settings.pause_ms):
                turn.paused = True
                turn.announced = turn.voiced * FRAME_MS >= settings.min_speech_ms
                if turn.announced:
                    effects.append(SpeechPaused(turn.audio(_frames(settings.pause_ms))))
        return effects + self._limit(turn)

    def _limit(self, turn: _Turn) -> list[Effect]:
        if len(turn.frames) < _frames(self._settings.max_turn_ms):
            return []
        return [self._close(turn, EndReason.TOO_LONG)]

    def _close(self, turn: _Turn, reason: EndReason) -> Effect:
        settings = self._settings
        self._turn = None
        end = turn.start + turn.spoken_until
        # What was heard since then may be the beginning of the next turn.
        rest = turn.frames[turn.spoken_until + _frames(settings.pause_ms) :]
        self._recent.extend((sound, False) for sound in rest)
        if turn.voiced * FRAME_MS < settings.min_speech_ms and reason is not EndReason.COMMITTED:
            return TurnDiscarded(_ms(end))
        self._ended = turn if reason is EndReason.SILENCE else None
        return TurnEnded(
            audio=turn.audio(_frames(settings.pause_ms)),
            start_ms=_ms(turn.start),
            end_ms=_ms(end),
            silence_ms=_ms(len(turn.frames) - turn.spoken_until),
            reason=reason,
        )


def _frames(milliseconds: int) -> int:
    return -(-milliseconds // FRAME_MS)


def _ms(frames: int) -> int:
    return frames * FRAME_MS
