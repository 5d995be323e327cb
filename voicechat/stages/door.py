"""The one door by which sound leaves: what a VoiceBox made becomes what is heard, at its tempo and marked.

Everything that changes time happens before the mark, and nothing of a reply gets past it: the ring to the server is
written with what :meth:`Door.through` returns, and a reply whose sound can't be marked in time has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.stages.tempo import Tempo


class Marker(Protocol):
    """Marks one reply as it comes; see :class:`voicechat.watermark.embed.Embedder`."""

    def push(self, pcm: Pcm) -> Pcm:
        """The sound (int16 ``[n]`` at 24 kHz) that has become certain with ``pcm``."""

    def finish(self) -> Pcm:
        """The rest."""


class FellBehind(Exception):
    """Marking takes longer than the sound lasts."""


class Door:
    """One reply's. ``make_marker`` is called with the first sound, None leaves all as it is; ``patience``: seconds by
    which marking may fall behind the sound.

    Not safe for use from two threads at once.
    """

    def __init__(self, make_marker: Callable[[], Marker] | None, speed: float, patience: float) -> None:
        self._make_marker = make_marker
        self._marker: Marker | None = None
        self._tempo = None if speed == 1.0 else Tempo(speed)
        self._patience = patience
        self._behind = 0.0
        self.given = 0
        """Samples that came out so far: the place of the next one in what is heard."""

    def through(self, pcm: Pcm, *, last: bool) -> Pcm:
        """What has become certain with ``pcm`` (int16 ``[n]`` at 24 kHz); with the ``last`` all that is left.

        Raises :class:`FellBehind`, and whatever the marker raises.
        """
        if self._tempo is not None:
            pcm = np.concatenate([self._tempo.push(pcm), self._tempo.flush()]) if last else self._tempo.push(pcm)
        return pcm if self._make_marker is None else self._mark(self._make_marker, pcm, last)

    def _mark(self, make: Callable[[], Marker], pcm: Pcm, last: bool) -> Pcm:
        started = time.perf_counter()
        marker = self._marker = self._marker or make()
        marked = marker.push(pcm)
        if last:
            marked = np.concatenate([marked, marker.finish()])
        took = time.perf_counter() - started
        self._behind = max(0.0, self._behind + took - len(pcm) / PCM_RATE)
        if self._behind > self._patience:
            raise FellBehind(f"{took:.2f} s for {len(pcm) / PCM_RATE:.2f} s of sound")
        return marked
