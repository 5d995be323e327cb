"""Faster or slower speech at the same pitch: waveform-similarity overlap-add (WSOLA), as the sound comes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import MAX_SPEED, MIN_SPEED, PCM_RATE, Pcm

HOP = PCM_RATE * 15 // 1000
"""Samples of the output that one step makes; pieces are twice as long and overlap by half."""
REACH = PCM_RATE * 10 // 1000
"""How far from its due place a piece may be taken, to either side: any pitch from 50 Hz up finds its period."""

Floats = npt.NDArray[np.float32]


class Tempo:
    """Stretches int16 mono sound at 24 kHz as it comes. ``tempo`` 2 is twice as fast.

    The output does not depend on how the input is cut, and is ``round(n / tempo)`` samples long for ``n`` in all.
    It lags the input by at most 60 ms. Not safe for use from two threads at once.
    """

    def __init__(self, tempo: float) -> None:
        if not MIN_SPEED <= tempo <= MAX_SPEED:
            raise ValueError(f"tempo must be between {MIN_SPEED} and {MAX_SPEED}, not {tempo}")
        self._tempo = tempo
        self._kept: Floats = np.zeros(0, np.float32)  # input from sample number self._start on
        self._start = 0
        self._taken = 0
        self._given = 0
        self._steps = 0
        self._next: Floats = np.zeros(0, np.float32)  # what follows the last piece in the input
        self._fade: Floats = (np.sin(np.pi / 2 * (np.arange(HOP) + 0.5) / HOP) ** 2).astype(np.float32)
        self._flushed = False

    def push(self, pcm: Pcm) -> Pcm:
        """The part of the output that has become certain with ``pcm`` (int16 ``[n]``)."""
        if self._flushed:
            raise ValueError("the tempo was already flushed")
        self._taken += len(pcm)
        self._kept = np.concatenate([self._kept, pcm.astype(np.float32)])
        return self._stretch()

    def flush(self) -> Pcm:
        """The rest of the output. No more input is taken after this."""
        if self._flushed:
            return np.zeros(0, np.int16)
        self._flushed = True
        missing = round(self._taken / self._tempo) - self._given
        quiet = int((missing + HOP) * self._tempo) + 2 * (HOP + REACH)
        self._kept = np.concatenate([self._kept, np.zeros(quiet, np.float32)])
        return self._stretch()[:missing]

    def _stretch(self) -> Pcm:
        """All steps for which there is enough input."""
        parts: list[Floats] = []
        while True:
            due = round(self._steps * HOP * self._tempo)
            enough = max(due + REACH + 2 * HOP, int((self._steps + 1) * HOP * self._tempo) + 1)
            if self._start + len(self._kept) < enough:
                break
            low = max(0, due - REACH)
            if low > self._start:
                self._kept = self._kept[low - self._start :]
                self._start = low
            parts.append(self._step(due - self._start))
            self._steps += 1
        if not parts:
            return np.zeros(0, np.int16)
        made = np.rint(np.concatenate(parts)).astype(np.int16)
        self._given += len(made)
        return made

    def _step(self, due: int) -> Floats:
        """The next ``HOP`` samples, with a piece from about place ``due`` of the kept input."""
        if not self._steps:
            place, made = 0, self._kept[:HOP]
        else:
            first = max(0, due - REACH)
            place = first + _likest(self._kept[first : due + REACH + HOP], self._next)
            made = self._next + self._fade * (self._kept[place : place + HOP] - self._next)
        self._next = self._kept[place + HOP : place + 2 * HOP]
        return made


def _likest(sound: Floats, wanted: Floats) -> int:
    """Where in ``sound`` a stretch as long as ``wanted`` is most like it, level apart."""
    likeness = np.correlate(sound, wanted, "valid")
    energy = np.cumsum(np.square(sound, dtype=np.float64))
    energy[len(wanted) :] -= energy[: -len(wanted)].copy()
    return int(np.argmax(likeness / np.sqrt(energy[len(wanted) - 1 :] + 1.0)))
