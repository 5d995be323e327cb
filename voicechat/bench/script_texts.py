"""What a set of turns is made of: who speaks, what is said, and what else is heard. The sets themselves are
:mod:`voicechat.bench.script_tuning` and :mod:`voicechat.bench.script_held_out`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from voicechat.bench.script import Kind


@dataclass(frozen=True, slots=True)
class Recorded:
    """Speech of a person, or another sound, out of a package: ``file`` as in :func:`script_voices.sound_file`, from and
    to in seconds (to 0: its end), and the words in it."""

    file: str
    words: str = ""
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Joined:
    """Recordings of one person, one after the other, with pauses of so many milliseconds between their voices."""

    files: tuple[str, ...]
    pauses_ms: tuple[int, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Noise:
    """A sound that is no speech, by its name in :mod:`script_sounds` or the name of its file, and its level in dB."""

    name: str
    seed: int
    level_db: float


@dataclass(frozen=True, slots=True)
class Texts:
    """One set. ``voices`` by their names in :mod:`script_voices`; texts as in :class:`script.Speech`; ``takes``: by how
    many speakers each text of a kind is spoken (1), one after the other of those that are there;
    ``seed``: of hums, so that no two sets have the same."""

    name: str
    voices: tuple[str, ...]
    questions: tuple[str, ...]
    pauses: tuple[str, ...]
    hesitations: tuple[str, ...]
    noisy: tuple[tuple[str, str, float], ...]
    recorded: tuple[Recorded | Joined, ...]
    noises: tuple[Noise, ...]
    backchannels: tuple[str, ...]
    interruptions: tuple[str | Recorded, ...]
    crowd: tuple[tuple[int, str], ...]
    takes: Mapping[Kind, int] = field(default_factory=dict)
    seed: int = 0
