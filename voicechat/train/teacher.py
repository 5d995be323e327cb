"""The teacher: a text-to-speech voice whose sound, and where each symbol lies in it, the Talker learns from."""

from __future__ import annotations

import os
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


class Speech(NamedTuple):
    """Sound (int16, 24 kHz) and, for each symbol row, the sample at which it ends."""

    pcm: npt.NDArray[np.int16]
    ends: npt.NDArray[np.int32]


class Teacher(Protocol):
    """Reads and speaks."""

    def read(self, text: str) -> list[Mark]:
        """Symbol rows of a text, sentences parted and ended by pauses."""

    def speak(self, symbols: list[int], seed: int) -> Speech:
        """Speak symbol rows. The same seed gives the same sound."""


class HibariTeacher:
    """hibari's voice "heart" (Apache-2.0), reading as the product reads: from our own streaming rows."""

    def __init__(self, model: Path) -> None:
        """``model``: hibari's graph with durations as a further output (:func:`prepare_model`)."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def read(self, text: str) -> list[Mark]:
        """See :class:`Teacher`."""
        return read_text(text)

    def speak(self, symbols: list[int], seed: int) -> Speech:
        """See :class:`Teacher`. Raises ``ValueError`` unless the rows begin and end with a pause."""
        if len(symbols) < 3 or symbols[0] != PAUSE or symbols[-1] != PAUSE:
            raise ValueError("rows begin and end with a pause")
        random = np.random.default_rng(seed)
        sounds: list[npt.NDArray[np.float32]] = []
        samples = np.zeros(len(symbols), np.int64)
        pauses = [index for index, symbol in enumerate(symbols) if symbol == PAUSE]
        for first, last in zip(pauses[:-1], pauses[1:], strict=True):
            sound, durations = self._sentence(symbols[first : last + 1], random)
            sounds.append(sound)
            samples[first : last + 1] += durations
        sound, ends = np.concatenate(sounds), np.cumsum(samples)
        start = max(0, int(ends[0]) - LEAD_SAMPLES)
        pcm = (np.clip(sound[start:], -1, 1) * 32767).astype(np.int16)
        pcm = np.append(pcm, np.zeros(TAIL_SAMPLES, np.int16))
        rows = (ends - start).astype(np.int32)
        rows[-1] = len(pcm)
        return Speech(pcm, rows)

    def _sentence(
        self, symbols: list[int], random: np.random.Generator
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        from hibari import dsp

        feeds = {"ids": np.asarray([symbols], np.int64), "speed": np.ones(1, np.float32)}
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    onnx.save(model, str(temporary))
    temporary.replace(path)
