"""Those who judge a sound: transcribers, DNSMOS, and a speaker's embedding. Each loads when it is first asked.

Transcribers are faster-whisper models. DNSMOS comes with the package ``speechmos``, the embedding with ``resemblyzer``;
where one is not installed, its figures are left out and a note says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voicechat.bench.voice_measures import spoken_seconds
from voicechat.media.resample import resample, to_float
from voicechat.train.transcriber import Transcriber
from voicechat.train.voice_figures import pitch

Pcm = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float32]
Judge = Callable[[Pcm, Floats], Any]
"""A judge's word, fit for JSON, on a sound: int16 at 24 kHz and the same as float32 at 16 kHz."""

RATE, LOW_RATE = 24_000, 16_000
DNSMOS_WINDOW, DNSMOS_HOP = int(9.01 * LOW_RATE), 4 * LOW_RATE
"""Samples at 16 kHz."""
HEARD = "heard:"
"""Before a transcriber's name: what it heard."""
PHRASES = "phrases:"
"""Before the first transcriber's name: what it heard when it was given one phrase after another."""
_NOTES = {
    "dnsmos": "DNSMOS left out: pip install speechmos librosa",
    "speaker": "speaker similarity left out: pip install --no-deps resemblyzer, and librosa",
}


class _Dnsmos:
    """Means over windows of 9.01 s, 4 s apart; a shorter sound is repeated until it fills one.

    (Left to itself ``speechmos`` doubles a sound until it is long enough and moves on by 1 s: up to nine windows that
    hold the same. It also takes all cores.)
    """

    def __init__(self) -> None:
        self._score: Any = None

    def __call__(self, pcm: Pcm, low: Floats) -> dict[str, float]:
        if self._score is None:
            self._score = _scorer()
        sound = np.clip(low, -1.0, 1.0)
        if len(sound) < DNSMOS_WINDOW:
            sound = np.resize(sound, DNSMOS_WINDOW)
        starts = range(0, len(sound) - DNSMOS_WINDOW + 1, DNSMOS_HOP)
        found = [self._score(sound[start : start + DNSMOS_WINDOW], LOW_RATE, False) for start in starts]
        return {
            name: round(float(np.mean([one[f"{name}_mos"] for one in found])), 4)
            for name in ("ovrl", "sig", "bak", "p808")
        }


def _scorer() -> Any:
    """``speechmos``'s DNSMOS, on one thread."""
    import onnxruntime
    from speechmos import dnsmos

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    folder = Path(dnsmos.__file__).parent / "dnsmos_models"
    primary, p808 = (str(folder / name) for name in ("sig_bak_ovr.onnx", "model_v8.onnx"))
    scorer = dnsmos.DNSMOS(primary, p808)
    scorer.onnx_sess = onnxruntime.InferenceSession(primary, options, providers=["CPUExecutionProvider"])
    scorer.p808_onnx_sess = onnxruntime.InferenceSession(p808, options, providers=["CPUExecutionProvider"])
    return scorer


class _Speaker:
    """Resemblyzer's embedding of who speaks: 256 numbers of length 1."""

    def __init__(self) -> None:
        self._encoder: Any = None

    def __call__(self, pcm: Pcm, low: Floats) -> list[float] | None:
        import resemblyzer

        if self._encoder is None:
            self._encoder = resemblyzer.VoiceEncoder("cpu", verbose=False)
        voiced = resemblyzer.preprocess_wav(low)
        if len(voiced) < LOW_RATE // 4:  # nothing, or next to nothing, is spoken
            return None
        return [round(float(value), 5) for value in self._encoder.embed_utterance(voiced)]


def _pitch(pcm: Pcm, low: Floats) -> list[float] | None:
    found = pitch(to_float(pcm), RATE)
    return None if found is None else [round(found.median_hz, 2), round(found.range_semitones, 3)]


def _spoken(pcm: Pcm, low: Floats) -> float:
    return round(spoken_seconds(to_float(pcm), RATE), 4)


class Panel:
    """All judges that are there. ``notes`` tell of those that are not; ``doubt`` is asked only about a sound that seems
    to have failed."""

    def __init__(self, transcribers: dict[str, Path]) -> None:
        """``transcribers``: folders of faster-whisper models by the name under which their words are kept."""
        self.notes: list[str] = []
        hearing = {name: Transcriber(path) for name, path in transcribers.items()}
        self._judges: dict[str, Judge] = {f"{HEARD}{name}": transcriber for name, transcriber in hearing.items()}
        self._judges |= {"pitch": _pitch, "spoken_s": _spoken}
        first = next(iter(hearing))
        self.doubt = f"{PHRASES}{first}"
        self._judges[self.doubt] = hearing[first].by_phrases
        if self._installed("dnsmos", "speechmos", "librosa", "onnxruntime"):
            self._judges["dnsmos"] = _Dnsmos()
        if self._installed("speaker", "resemblyzer", "librosa"):
            self._judges["speaker"] = _Speaker()

    def _installed(self, name: str, *modules: str) -> bool:
        there = all(importlib.util.find_spec(module) is not None for module in modules)
        if not there:
            self.notes.append(_NOTES[name])
        return there

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the judges who are asked about every sound, in their order."""
        return tuple(name for name in self._judges if name != self.doubt)

    def judge(self, pcm: Pcm, asked: tuple[str, ...]) -> dict[str, Any]:
        """The words of the judges ``asked`` on int16 ``[n]`` at 24 kHz; of next to no sound, nothing."""
        if len(pcm) < RATE // 10:
            return {name: "" if name.startswith((HEARD, PHRASES)) else None for name in asked}
        low = resample(to_float(pcm), RATE, LOW_RATE)
        return {name: self._judges[name](pcm, low) for name in asked}
