"""Faster or slower speech at the same pitch, on top of libavfilter's ``atempo``."""

from __future__ import annotations

import av
import av.filter
import numpy as np

from voicechat.cascade.api import PCM_RATE, Pcm

MIN_TEMPO, MAX_TEMPO = 0.25, 4.0


class Tempo:
    """Stretches int16 mono sound at 24 kHz as it comes. ``tempo`` 2 is twice as fast."""

    def __init__(self, tempo: float) -> None:
        if not MIN_TEMPO <= tempo <= MAX_TEMPO:
            raise ValueError(f"tempo must be between {MIN_TEMPO} and {MAX_TEMPO}, not {tempo}")
        graph = av.filter.Graph()
        source = graph.add_abuffer(format="s16", sample_rate=PCM_RATE, layout="mono", name="in")
        last = source
        for factor in _factors(tempo):
            stage = graph.add("atempo", f"{factor:.6f}")
            last.link_to(stage)
            last = stage
        sink = graph.add("abuffersink")
        last.link_to(sink)
        graph.configure()
        self._graph = graph
        self._pts = 0
        self._flushed = False

    def push(self, pcm: Pcm) -> Pcm:
        """The part of the output that has become certain with ``pcm`` (int16 ``[n]``)."""
        if not len(pcm):
            return np.zeros(0, np.int16)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm)[None, :], format="s16", layout="mono")
        frame.sample_rate = PCM_RATE
        frame.pts = self._pts
        self._pts += len(pcm)
        self._graph.push(frame)
        return self._pull()

    def flush(self) -> Pcm:
        """The rest of the output."""
        if self._flushed or not self._pts:
            return np.zeros(0, np.int16)
        self._flushed = True
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> Pcm:
        parts: list[Pcm] = []
        while True:
            try:
                frame = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                break
            assert isinstance(frame, av.AudioFrame)
            parts.append(frame.to_ndarray().reshape(-1).astype(np.int16, copy=False))
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)


def _factors(tempo: float) -> list[float]:
    """``tempo`` as a product of factors that one filter can take (0.5 and more)."""
    factors = []
    while tempo < 0.5:
        factors.append(0.5)
        tempo /= 0.5
    return [*factors, tempo]
