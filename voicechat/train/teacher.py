"""Teachers: text-to-speech voices whose sound, and where each symbol lies in it, the Talker learns from.

A teacher has two methods, :meth:`Teacher.read` and :meth:`Teacher.speak`. Whatever alphabet its own model uses, it
reads to and speaks from the symbol rows of :mod:`voicechat.models.embedded.frontend`.
"""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from voicechat.models.embedded.frontend import PAUSE, Mark, read_text

FRAME_SAMPLES = 600
"""hibari counts durations in frames of 25 ms."""
LEAD_SAMPLES = 960
"""Silence kept before the first sentence: one Talker step."""
TAIL_SAMPLES = 1_920
"""Silence added after the last sentence."""
DURATIONS = "/ReduceSum_1_output_0"
LEVEL = 0.05
"""Root mean square of the spoken parts of a clip, full scale 1: about what hibari's "heart" speaks at."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Speech(NamedTuple):
    """Sound (int16, 24 kHz) and, for each symbol row, the sample at which it ends."""

    pcm: npt.NDArray[np.int16]
    ends: npt.NDArray[np.int32]


class AlignmentError(ValueError):
    """A clip's sound and symbols could not be brought together; the clip is left out."""


class Teacher(Protocol):
    """Reads and speaks."""

    def read(self, text: str) -> list[Mark]:
        """Symbol rows of a text, sentences parted and ended by pauses."""

    def speak(self, symbols: list[int], seed: int, text: str) -> Speech:
        """Speak symbol rows that were read from ``text``. The same seed gives the same sound.

        Raises ``ValueError`` unless the rows begin and end with a pause, :class:`AlignmentError` where sound and rows
        cannot be brought together.
        """


def sentences(symbols: list[int]) -> list[tuple[int, int]]:
    """First and last row (both pauses) of each sentence. Raises ``ValueError`` unless rows begin and end with one."""
    if len(symbols) < 3 or symbols[0] != PAUSE or symbols[-1] != PAUSE:
        raise ValueError("rows begin and end with a pause")
    pauses = [index for index, symbol in enumerate(symbols) if symbol == PAUSE]
    return list(zip(pauses[:-1], pauses[1:], strict=True))


def finish(sound: Floats, ends: Ints) -> Speech:
    """Cut the silence before the first sentence, add some after the last; ``ends`` are the rows' ends in ``sound``."""
    start = max(0, int(ends[0]) - LEAD_SAMPLES)
    pcm = (np.clip(sound[start:], -1, 1) * 32767).astype(np.int16)
    pcm = np.append(pcm, np.zeros(TAIL_SAMPLES, np.int16))
    rows = (ends - start).astype(np.int32)
    rows[-1] = len(pcm)
    return Speech(pcm, rows)


def level(sound: Floats, target: float = LEVEL) -> Floats:
    """Scale a clip so that its spoken parts (20 ms frames less than 30 dB below the loudest) have this level."""
    frames = sound[: len(sound) // 480 * 480].reshape(-1, 480)
    if not len(frames):
        return sound
    power = (frames.astype(np.float64) ** 2).mean(1)
    spoken = power[power > power.max() * 1e-3]
    return (sound * (target / max(float(np.sqrt(spoken.mean())), 1e-4))).astype(np.float32) if len(spoken) else sound


def make_session(model: Path) -> Any:
    """An ONNX session on one thread: the teachers run as many processes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


class HibariTeacher:
    """hibari's voice "heart" (Apache-2.0), reading as the product reads: from our own streaming rows.

    ``size`` under 1 makes another voice of it: everything is spoken faster by that factor and played slower by it, so
    that pitch and formants together are lowered, as those of a larger speaker are, and nothing else changes.
    """

    def __init__(self, model: Path, size: Fraction = Fraction(1)) -> None:
        """``model``: hibari's graph with durations as a further output (:func:`prepare_model`)."""
        if not Fraction(1, 2) <= size <= 2:
            raise ValueError(f"a voice's size lies between 0.5 and 2, not {float(size):g}")
        self._session = make_session(model)
        self._size = size

    def read(self, text: str) -> list[Mark]:
        """See :class:`Teacher`."""
        return read_text(text)

    def speak(self, symbols: list[int], seed: int, text: str = "") -> Speech:
        """See :class:`Teacher`."""
        random = np.random.default_rng(seed)
        sounds: list[Floats] = []
        samples = np.zeros(len(symbols), np.int64)
        for first, last in sentences(symbols):
            sound, durations = self._sentence(symbols[first : last + 1], random)
            sounds.append(sound)
            samples[first : last + 1] += durations
        sound, ends = np.concatenate(sounds), np.cumsum(samples)
        if self._size != 1:
            from scipy.signal import resample_poly

            sound = resample_poly(sound, self._size.denominator, self._size.numerator).astype(np.float32)
            ends = ends * self._size.denominator // self._size.numerator
        return finish(sound, ends)

    def _sentence(self, symbols: list[int], random: np.random.Generator) -> tuple[Floats, Ints]:
        from hibari import dsp

        feeds = {"ids": np.asarray([symbols], np.int64), "speed": np.full(1, 1 / float(self._size), np.float32)}
        *spectrum, rows = self._session.run(None, feeds)
        sound = dsp.synth(*(part[0] for part in spectrum), random)
        durations = np.bincount(rows.ravel(), minlength=len(symbols)) * FRAME_SAMPLES
        durations[-1] += len(sound) - durations.sum()
        return sound, durations


def prepare_model(path: Path) -> None:
    """Write hibari's ONNX graph with its symbol durations as one more output. Needs ``onnx``."""
    import hibari
    import onnx

    source = Path(hibari.__file__).parent / "assets" / "hibari.onnx"
    model = onnx.load(str(source))
    model.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.INT64, None))
    save_model(model, path)


def save_model(model: Any, path: Path) -> None:
    """Write an ONNX graph, whole or not at all."""
    import onnx

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    onnx.save(model, str(temporary))
    temporary.replace(path)
