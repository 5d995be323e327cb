"""The scripted set's words: what an entry is, and what becomes of it as sound.

An :class:`Entry` says what is heard (speech with pauses, a piece of a recording, or a sound that is no speech), what
must come of it, and over which background. A :class:`Recording` is its sound, with the places where there is voice:
these are known from the construction, and trimmed by energy, so that every measure counts from true samples.
"""

from __future__ import annotations

import enum
import itertools
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voicechat.bench.measures import last_voiced
from voicechat.media.resample import to_float, to_pcm
from voicechat.stages.tempo import Tempo

Floats = npt.NDArray[np.float32]

SOUND_RATE = 24_000
"""Rate in Hz of all sounds of the set."""

SPEECH_DB = -23.0
"""Level of speech: RMS of its voiced part in dB of full scale."""

LEAD_S = 0.4
TAIL_S = 0.1
_LEVEL_WINDOW = SOUND_RATE // 100
_EDGE = SOUND_RATE // 100
_STRETCHED = int(0.3 * SOUND_RATE)
_STRETCH = 0.45
_PAUSE = re.compile(r"\{(\d+)(~?)\}")


class Expect(enum.StrEnum):
    """What must come of an entry."""

    ONE_TURN = "one turn"
    NO_TURN = "no turn"
    NO_INTERRUPTION = "no interruption"
    INTERRUPTION = "interruption"


class Kind(enum.StrEnum):
    """What an entry is."""

    QUESTION = "question"
    PAUSE = "pause"
    HESITATION = "hesitation"
    NOISY = "noisy question"
    RECORDED = "recorded speech"
    NOISE = "noise"
    NOISE_IN_REPLY = "noise in reply"
    BACKCHANNEL = "backchannel"
    INTERRUPTION = "interruption"

    @property
    def in_reply(self) -> bool:
        """True if it is heard while a reply plays."""
        return self in (Kind.NOISE_IN_REPLY, Kind.BACKCHANNEL, Kind.INTERRUPTION)


@dataclass(frozen=True, slots=True)
class Speech:
    """Somebody says ``text``. ``{600}`` after a comma is a pause of 600 ms without voice; ``{600~}`` the same after a
    drawn-out end. ``speaker`` counts through the voices that are there."""

    text: str
    speaker: int = 0
    level_db: float = SPEECH_DB


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a recording that another package brings along: its file, from and to in seconds (to 0: its end)."""

    file: str
    start_s: float = 0.0
    end_s: float = 0.0
    level_db: float = SPEECH_DB


@dataclass(frozen=True, slots=True)
class Splice:
    """Recordings, one after the other, with so many milliseconds without voice between them."""

    files: tuple[str, ...]
    pauses_ms: tuple[int, ...]
    level_db: float = SPEECH_DB


@dataclass(frozen=True, slots=True)
class Effect:
    """A sound that is no speech, by its name in :mod:`voicechat.bench.script_sounds`; ``seed`` makes it this one."""

    name: str
    seed: int = 0
    level_db: float = SPEECH_DB


Source = Speech | Excerpt | Splice | Effect


@dataclass(frozen=True, slots=True)
class Background:
    """A steady sound under everything, by its name in :mod:`voicechat.bench.script_sounds`, ``snr_db`` below the
    speech."""

    name: str
    snr_db: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One turn of the set. ``words`` are those that the ears should find, ``after_s`` how long the reply has been heard
    when an entry of a kind that is heard in one begins."""

    name: str
    kind: Kind
    expect: Expect
    source: Source
    words: str = ""
    background: Background | None = None
    after_s: float = 1.2


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """An entry's sound: float32 ``[n]`` at :data:`SOUND_RATE`. ``spans`` are the voiced parts, in order, as (first
    sample, last sample); of an effect, where it is heard. ``background`` is to be looped under all of it."""

    entry: Entry
    sound: Floats
    spans: tuple[tuple[int, int], ...]
    voice: str
    background: Floats | None = None

    @property
    def first(self) -> int:
        """The first voiced sample."""
        return self.spans[0][0]

    @property
    def last(self) -> int:
        """The last voiced sample."""
        return self.spans[-1][1]


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause in a text, after ``chars`` characters of it."""

    chars: int
    milliseconds: int
    drawn_out: bool


def parse(text: str) -> tuple[str, list[Pause]]:
    """What is to be spoken, and the pauses in it. Raises ValueError if there is no comma before a pause."""
    plain, pauses, at = "", [], 0
    for found in _PAUSE.finditer(text):
        plain += text[at : found.start()]
        at = found.end()
        if not plain.endswith((",", ".", "-")):
            raise ValueError(f"a pause needs a place where a speaker makes one: {text!r}")
        pauses.append(Pause(len(plain), int(found[1]), bool(found[2])))
    return plain + text[at:], pauses


def voiced_span(sound: Floats) -> tuple[int, int]:
    """First and last voiced sample. Raises ValueError if all is silence."""
    last = last_voiced(sound, SOUND_RATE)
    first = last_voiced(np.ascontiguousarray(sound[::-1]), SOUND_RATE)
    if last is None or first is None:
        raise ValueError("the sound is silence")
    return len(sound) - 1 - first, last


def with_pauses(sound: Floats, text: str, pauses: list[Pause]) -> tuple[Floats, list[tuple[int, int]]]:
    """``sound``, which says ``text``, with its pauses as long as they are to be; and its voiced parts."""
    first, last = voiced_span(sound)
    cuts = _gaps(sound, [first + round((last - first) * pause.chars / len(text)) for pause in pauses])
    parts: list[Floats] = []
    spans: list[tuple[int, int]] = []
    begun, at = 0, 0
    for index in range(len(cuts) + 1):
        end = cuts[index] if index < len(cuts) else len(sound)
        part = sound[begun:end]
        begun = end
        if index < len(pauses) and pauses[index].drawn_out:
            part = _drawn_out(part)
        first, last = voiced_span(part)
        start = max(0, first - _EDGE)
        part = _faded(part[start : last + 1 + _EDGE])
        first, last = first - start, last - start
        if index:
            silent = pauses[index - 1].milliseconds * SOUND_RATE // 1000
            gap = max(0, silent - (at - 1 - spans[-1][1]) - first)
            parts.append(np.zeros(gap, np.float32))
            at += gap
        parts.append(part)
        spans.append((at + first, at + last))
        at += len(part)
    return np.concatenate(parts), spans


def spliced(sounds: list[Floats], pauses_ms: tuple[int, ...]) -> tuple[Floats, list[tuple[int, int]]]:
    """``sounds`` without what is silent around their voices, and with these pauses between; and their voiced parts."""
    parts: list[Floats] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for sound, pause in zip(sounds, (0, *pauses_ms), strict=True):
        first, last = voiced_span(sound)
        start = max(0, first - _EDGE)
        part = _faded(sound[start : last + 1 + _EDGE])
        if spans:
            gap = max(0, pause * SOUND_RATE // 1000 - (at - 1 - spans[-1][1]) - (first - start))
            parts.append(np.zeros(gap, np.float32))
            at += gap
        parts.append(part)
        spans.append((at + first - start, at + last - start))
        at += len(part)
    return np.concatenate(parts), spans


def leveled(sound: Floats, level_db: float) -> Floats:
    """``sound`` with an RMS of ``level_db`` over what is voiced in it, and no sample over full scale."""
    levels = _levels(sound)
    voiced = levels[levels >= levels.max() * 10 ** (-30 / 20)]
    rms = float(np.sqrt(np.mean(np.square(voiced))))
    if rms <= 0:
        raise ValueError("the sound is silence")
    gain = min(10 ** (level_db / 20) / rms, 0.98 / float(np.abs(sound).max()))
    return (sound * np.float32(gain)).astype(np.float32)


def framed(sound: Floats, spans: list[tuple[int, int]]) -> tuple[Floats, tuple[tuple[int, int], ...]]:
    """``sound`` with quiet before and after it, and its parts moved along."""
    lead, tail = int(LEAD_S * SOUND_RATE), int(TAIL_S * SOUND_RATE)
    padded = np.concatenate([np.zeros(lead, np.float32), sound, np.zeros(tail, np.float32)])
    return padded, tuple((first + lead, last + lead) for first, last in spans)


def _levels(sound: Floats) -> npt.NDArray[np.float64]:
    count = max(1, len(sound) // _LEVEL_WINDOW)
    whole = np.zeros(count * _LEVEL_WINDOW, np.float64)
    part = sound[: len(whole)]
    whole[: len(part)] = part
    return np.asarray(np.sqrt(np.mean(np.square(whole.reshape(count, _LEVEL_WINDOW)), axis=1)))


def _gaps(sound: Floats, expected: list[int]) -> list[int]:
    """Where ``sound`` pauses near each of the samples ``expected``: in the middle of long stretches without voice.
    Raises ValueError if it pauses too seldom."""
    if not expected:
        return []
    levels = _levels(sound)
    quiet = levels < float(levels.max()) * 10 ** (-30 / 20)
    first, last = (index // _LEVEL_WINDOW for index in voiced_span(sound))
    found: list[tuple[int, int]] = []
    start = None
    for index in range(first, min(last + 1, len(quiet))):
        if quiet[index]:
            start = index if start is None else start
        elif start is not None:
            found.append((start, index))
            start = None
    if len(found) < len(expected):
        raise ValueError(f"the voice pauses {len(found)} times, not {len(expected)}")

    def worth(cuts: tuple[tuple[int, int], ...]) -> float:
        return sum(
            min(end - begin, 30) - 0.3 * abs((begin + end) / 2 - sample / _LEVEL_WINDOW)
            for (begin, end), sample in zip(cuts, expected, strict=True)
        )

    best = max(itertools.combinations(found, len(expected)), key=worth)
    return [(begin + end) // 2 * _LEVEL_WINDOW for begin, end in best]


def _drawn_out(part: Floats) -> Floats:
    """The end of what is said, dwelt upon."""
    first, last = voiced_span(part)
    start = max(first, last - _STRETCHED)
    tempo = Tempo(_STRETCH)
    slow = np.concatenate([tempo.push(to_pcm(part[start : last + 1])), tempo.flush()])
    return np.concatenate([part[:start], to_float(slow.astype(np.int16))])


def _faded(part: Floats) -> Floats:
    """Without a click at either end."""
    faded = part.copy()
    edge = min(_EDGE // 2, len(faded) // 2)
    ramp = np.linspace(0.0, 1.0, edge, dtype=np.float32)
    faded[:edge] *= ramp
    faded[len(faded) - edge :] *= ramp[::-1]
    return faded
