"""The pieces of a file in which somebody speaks, one after another: memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voicechat.contract.sound import EARS_RATE, EarsPcm, Pcm
from voicechat.media.silero import WINDOW_SAMPLES, Silero
from voicechat.media.sound_file import read_sound

ON, OFF = 0.5, 0.35
"""Speech begins with the one probability and ends below the other, as in Silero's own function."""
PAD_S = 0.3
"""Of sound before and behind speech that belongs to its piece."""
GAP_S, SHORT_GAP_S, SHORT_S = 0.8, 2.0, 4.0
"""A piece ends in a pause of the first length; one that is shorter than the last, in one of the second."""
LEAST_VOICED_S = 0.15
"""Less than this is no speech: a click, a key's tone."""
STEP_S = 30.0
"""So much sound is looked at between two breaths, at most."""
QUIET_RMS = 1e-3
"""Without Silero what is louder than this is taken for speech."""
_CONTEXT = 64
_SMOOTH = 7


@dataclass(frozen=True, slots=True)
class SpeechPiece:
    """Float32 mono at 16 kHz, from ``begin_s`` of the file on."""

    pcm: EarsPcm
    begin_s: float


class SpeechCutter:
    """Cuts a sound that comes bit by bit. ``silero`` None: speech is known by its level alone."""

    def __init__(self, silero: Silero | None) -> None:
        self._silero = silero
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context: EarsPcm = np.zeros(_CONTEXT, np.float32)
        self._windows: list[EarsPcm] = []
        self._chances: list[float] = []
        self._begin = 0  # number of the first of these windows
        self._open = False
        self._voiced = 0
        self._quiet = 0
        self._rest: EarsPcm = np.zeros(0, np.float32)

    def feed(self, pcm: EarsPcm, most_s: float) -> Iterator[SpeechPiece]:
        """Take more sound; pieces that it completes, none longer than ``most_s``."""
        sound = np.concatenate([self._rest, pcm])
        count = len(sound) // WINDOW_SAMPLES
        self._rest = sound[count * WINDOW_SAMPLES :]
        for window in sound[: count * WINDOW_SAMPLES].reshape(count, WINDOW_SAMPLES):
            yield from self._take(window, max(1, _windows(most_s)))

    def finish(self) -> Iterator[SpeechPiece]:
        """The last piece, if one is open."""
        if len(self._rest):
            yield from self._take(np.pad(self._rest, (0, WINDOW_SAMPLES - len(self._rest))), 1 << 30)
            self._rest = self._rest[:0]
        if self._open:
            yield from self._close()

    def _take(self, window: EarsPcm, most: int) -> Iterator[SpeechPiece]:
        chance = self._chance(window)
        self._windows.append(window)
        self._chances.append(chance)
        speaks = chance >= (OFF if self._open and not self._quiet else ON)
        if not self._open:
            if speaks:
                self._open, self._voiced, self._quiet = True, 1, 0
            elif len(self._windows) > _windows(PAD_S):
                self._drop(1)
            return
        self._voiced += speaks
        self._quiet = 0 if speaks else self._quiet + 1
        long = len(self._windows) >= _windows(SHORT_S)
        if self._quiet >= _windows(GAP_S if long else SHORT_GAP_S):
            yield from self._close()
        elif len(self._windows) >= most:
            yield from self._split()

    def _chance(self, window: EarsPcm) -> float:
        if self._silero is None:
            return float(np.sqrt(np.square(window).mean()) > QUIET_RMS)
        probabilities, self._state = self._silero.run(np.concatenate([self._context, window])[None], self._state)
        self._context = window[-_CONTEXT:]
        return float(probabilities[0])

    def _close(self) -> Iterator[SpeechPiece]:
        """The open piece, without the silence behind it but for what belongs to it."""
        end = len(self._windows) - max(0, self._quiet - _windows(PAD_S))
        if self._voiced >= _windows(LEAST_VOICED_S):
            yield self._piece(end)
        self._open, self._quiet = False, 0
        self._drop(max(end, len(self._windows) - _windows(PAD_S)))

    def _split(self) -> Iterator[SpeechPiece]:
        """The open piece up to where speech is least likely in its second half; the rest stays open."""
        half = len(self._windows) // 2
        smooth = np.convolve(self._chances[half:], np.ones(_SMOOTH) / _SMOOTH, "same")
        quiet = np.square(np.stack(self._windows[half:])).mean(1)
        end = half + 1 + int(np.lexsort((quiet, np.round(smooth, 1)))[0])
        if sum(chance >= OFF for chance in self._chances[:end]) >= _windows(LEAST_VOICED_S):
            yield self._piece(end)
        self._drop(end)
        self._voiced = sum(chance >= OFF for chance in self._chances)

    def _piece(self, end: int) -> SpeechPiece:
        return SpeechPiece(np.concatenate(self._windows[:end]), self._begin * WINDOW_SAMPLES / EARS_RATE)

    def _drop(self, count: int) -> None:
        del self._windows[:count]
        del self._chances[:count]
        self._begin += count


class SpeechReader:
    """The speech of a stranger's file, step by step. CPU-bound: call :meth:`step` in a worker thread."""

    def __init__(self, path: Path, silero: Silero | None, *, max_s: float) -> None:
        self._source = read_sound(path, foreign=True, rate=EARS_RATE, max_s=max_s)
        self._cutter = SpeechCutter(silero)
        self._ready: list[SpeechPiece] = []
        self._samples = 0
        self.over = False
        """True once all pieces were given."""

    @property
    def seconds(self) -> float:
        """Of sound that was read; the whole file's in the end."""
        return self._samples / EARS_RATE

    def step(self, most_s: float) -> SpeechPiece | None:
        """The next piece of at most ``most_s`` seconds; None if there is none yet, or if it is :attr:`over`.

        Raises :class:`~voicechat.contract.provenance.CannotCheck` as
        :func:`~voicechat.media.sound_file.read_sound` does.
        """
        looked = 0
        while not self._ready and looked < STEP_S * EARS_RATE:
            pcm = next(self._source, None)
            if pcm is None:
                self._ready.extend(self._cutter.finish())
                self.over = not self._ready
                break
            looked += len(pcm)
            self._samples += len(pcm)
            self._ready.extend(self._cutter.feed(_floats(pcm), most_s))
        return self._ready.pop(0) if self._ready else None

    def close(self) -> None:
        """Let go of the file."""
        self._source.close()


def _floats(pcm: Pcm) -> EarsPcm:
    return pcm.astype(np.float32) / np.float32(32768)


def _windows(seconds: float) -> int:
    return round(seconds * EARS_RATE / WINDOW_SAMPLES)
