"""Spoken questions, made before anything is timed, in a process of their own that is gone when the timing begins."""

from __future__ import annotations

import io
import multiprocessing
import shutil
import subprocess
import wave
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import numpy.typing as npt

from voicechat.bench.outcome import BenchError
from voicechat.media.resample import resample

Floats = npt.NDArray[np.float32]

VOICES = ("hibari", "espeak-ng")
LEAD_S = 0.4
"""Quiet before each question, so that a detector of speech can get to know the room."""


class NoVoice(BenchError):
    """Nothing here can speak the questions; ``str()`` says what would."""


def speak(texts: Sequence[str], rate: int, voice: str | None = None) -> tuple[str, list[Floats]]:
    """Speak ``texts``: the voice's name, and for each text float32 ``[n]`` at ``rate`` Hz.

    ``voice`` is one of :data:`VOICES`, None for the first that is there. Raises :class:`NoVoice`.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_speak, list(texts), rate, voice).result()
        except BrokenProcessPool:
            raise NoVoice("the process that speaks the questions died") from None


def _speak(texts: list[str], rate: int, voice: str | None) -> tuple[str, list[Floats]]:
    for name in VOICES if voice is None else (voice,):
        if name == "hibari":
            try:
                from hibari import Hibari
            except ImportError:
                continue
            reader = Hibari()
            return name, [_finished(reader(text, seed=1), reader.sample_rate, rate) for text in texts]
        if name == "espeak-ng" and shutil.which("espeak-ng"):
            return name, [_finished(*_espeak(text), rate) for text in texts]
    raise NoVoice("to ask aloud, install hibari-tts (pip) or espeak-ng (apt)")


def _espeak(text: str) -> tuple[Floats, int]:
    done = subprocess.run(["espeak-ng", "-v", "en-us", "--stdout", text], capture_output=True, check=False)
    if done.returncode:
        raise NoVoice(f"espeak-ng failed: {done.stderr.decode(errors='replace').strip()}")
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate = file.getframerate()
        end = len(done.stdout) - len(done.stdout) % 2
        data = done.stdout[44:end]  # the length in espeak's header is not to be believed
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768), rate


def _finished(sound: npt.NDArray[np.float32], rate_in: int, rate: int) -> Floats:
    loud = np.clip(np.asarray(sound, np.float32), -1.0, 1.0)
    quiet = np.zeros(int(LEAD_S * rate), np.float32)
    return np.concatenate([quiet, resample(loud, rate_in, rate)])
