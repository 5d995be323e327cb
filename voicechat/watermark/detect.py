"""Finds marks in any sound, without the original: a stream of any length in, a report out, in bounded memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from voicechat.watermark.code import Floats, encode
from voicechat.watermark.features import STEP_MS, STEPS_OF_A_ROW, Contrasts, Levels
from voicechat.watermark.keys import Key
from voicechat.watermark.pattern import BANDS, Pattern
from voicechat.watermark.report import FALSE_POSITIVE_RATE, Outcome, Report, Span
from voicechat.watermark.search import INTERESTING, SCALES, Places, Template, Window, search, steps_needed
from voicechat.watermark.spans import Track, joined

RATES = (8_000, 16_000, 24_000, 48_000)
"""Sample rates that sound may have; any other is first resampled, best to 16,000 Hz. Nothing is seen above 7 kHz."""

MIN_S = 1.0
"""Shorter sounds are not looked at."""

_ROWS = (100, 250)
"""Lengths of the windows: 2 s and 5 s."""
_HOP = 500 // STEP_MS
_MARGIN = 2000 // STEP_MS
_NEED = max(steps_needed(rows) for rows in _ROWS)
_SILENT = 10 ** (-70 / 20)


class Detector:
    """Looks for the marks of several keys in one sound. Not safe for use from two threads at once."""

    def __init__(self, keys: Sequence[Key], rate: int = 16_000, expected: Sequence[int] = ()) -> None:
        """``rate``: sample rate in Hz of the sound, of :data:`RATES`; ``expected``: payloads that are likeliest, such
        as the deployment's own: they are found where others would be too weak. Raises ``ValueError``.
        """
        if not keys:
            raise ValueError("there is no key to look for")
        if rate not in RATES:
            raise ValueError(f"the detector takes sound at {', '.join(map(str, RATES))} Hz, not {rate}; resample it")
        self._rate = rate
        patterns = {key: Pattern.of(key) for key in dict.fromkeys(keys)}
        self._keys = {key: (pattern, Template(pattern)) for key, pattern in patterns.items()}
        self._expected = tuple(dict.fromkeys(expected))
        for payload in self._expected:
            encode(payload)  # refuses what is none
        self._stream, self._front = Levels(rate, SCALES), Contrasts(len(SCALES))
        self._seen: Floats = np.zeros((0, len(SCALES), BANDS), np.float32)  # contrasts
        self._begin = 0  # step of the first of them
        self._start = 0  # step at which the next windows begin
        self._samples = 0
        self._loudest = 0.0
        self._windows = 0
        self._lowest = 0.0
        self._scores = array("d")  # the best of each second, packed: a sound may last days
        self._tracks: list[Track] = []
        self._finished = False

    def feed(self, pcm: npt.NDArray[np.int16] | npt.NDArray[np.float32]) -> None:
        """Take sound: int16, or float32 in [-1, 1]; ``[n]``, n may be 0."""
        if self._finished:
            raise ValueError("this sound was already finished")
        if pcm.ndim != 1 or pcm.dtype not in (np.int16, np.float32):
            raise ValueError(f"sound must be int16 or float32 [n], not {pcm.dtype} {list(pcm.shape)}")
        for first in range(0, len(pcm), self._rate):  # a second at a time, so that a long piece needs no more memory
            piece = pcm[first : first + self._rate]
            sound = piece.astype(np.float32)
            if piece.dtype == np.int16:
                sound /= np.float32(32768)
            if not np.isfinite(sound).all():
                raise ValueError("there are samples that are no number")
            self._samples += len(sound)
            self._loudest = max(self._loudest, float(np.abs(sound).max()))
            self._seen = np.concatenate([self._seen, self._front.push(self._stream.push(sound))])
            self._look(_NEED + _MARGIN)

    def finish(self) -> Report:
        """What was found. Takes no more sound after this."""
        if self._finished:
            raise ValueError("this sound was already finished")
        self._finished = True
        rest = [self._front.push(self._stream.finish()), self._front.finish()] if self._samples else []
        self._seen = np.concatenate([self._seen, *rest])
        if self._samples >= MIN_S * self._rate:
            self._look(steps_needed(min(_ROWS)))
            end = self._begin + len(self._seen)
            if not self._windows or self._start + steps_needed(min(_ROWS)) // 2 < end:
                self._look_at(max(0, min(self._start, end - steps_needed(min(_ROWS)))))
        return self._report()

    def _look(self, ahead: int) -> None:
        """Look at the windows that have so many steps of sound."""
        while self._begin + len(self._seen) - self._start >= ahead:
            self._look_at(self._start)
            self._start += _HOP
            spare = self._start - _MARGIN - self._begin
            if spare > 0:
                self._seen = self._seen[spare:]
                self._begin += spare

    def _look_at(self, start: int) -> None:
        seen = self._seen[start - self._begin :]
        asked = [r for n, r in enumerate(_ROWS) if not n or len(seen) >= steps_needed(_ROWS[n - 1]) + _HOP]
        window = Window(seen[: steps_needed(asked[-1])], asked[-1])
        for rows in asked:
            places = Places(window, rows)
            score = 0.0
            for key, (pattern, template) in self._keys.items():
                self._windows += 1
                found = search(places, template, self._expected)
                score = max(score, found.score)
                self._lowest = min(self._lowest, found.log_p)
                if found.log_p > INTERESTING:
                    continue
                track = next((t for t in reversed(self._tracks) if t.continues(key, found, start)), None)
                if track is None:
                    track = Track.begin(key, found, start)
                    self._tracks.append(track)
                track.add(found, start)
                end = start + rows * STEPS_OF_A_ROW
                track.watch(self._seen, self._begin, start - _MARGIN, end + _MARGIN, pattern)
            if rows == _ROWS[0]:
                self._note((start + rows * STEPS_OF_A_ROW / 2) * STEP_MS / 1000, score)

    def _report(self) -> Report:
        duration = self._samples / self._rate
        tried = math.log(max(1, self._windows))
        spans: list[Span] = []
        for track in self._tracks:
            log_p = track.best.log_p + tried
            if log_p > math.log(FALSE_POSITIVE_RATE):
                continue
            start, end = track.bounds()
            payload = track.best.word if track.checked else None
            p_value, score = math.exp(min(0.0, log_p)), track.best.score
            speed = track.best.hypothesis.speed
            spans.append(Span(start, min(end, duration), payload, track.key.id, p_value, score, speed))
        spans = joined(spans)
        p_value = math.exp(min(0.0, self._lowest + tried))
        outcome: Outcome = "marked" if spans else "not_marked"
        if not spans and duration < MIN_S:
            outcome = "too_short"
        elif not spans and self._loudest < _SILENT:
            outcome = "silent"
        return Report(duration, outcome, p_value, self._by_second(duration), tuple(spans))

    def _note(self, middle_s: float, score: float) -> None:
        second = int(middle_s)
        self._scores.extend([0.0] * (second + 1 - len(self._scores)))
        self._scores[second] = max(self._scores[second], score)

    def _by_second(self, duration: float) -> tuple[float, ...]:
        count = math.ceil(duration)
        best, beyond = self._scores[:count], self._scores[count:]  # a window may reach beyond the end
        best.extend([0.0] * (count - len(best)))
        for score in beyond if count else ():
            best[-1] = max(best[-1], score)
        return tuple(best)


def detect(
    pcm: npt.NDArray[np.int16] | npt.NDArray[np.float32],
    keys: Sequence[Key],
    rate: int = 16_000,
    expected: Sequence[int] = (),
) -> Report:
    """The report of one whole sound; see :class:`Detector`."""
    detector = Detector(keys, rate, expected)
    detector.feed(pcm)
    return detector.finish()
