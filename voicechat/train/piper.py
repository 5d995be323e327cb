"""Piper's VITS voices as teachers: hibari's symbols are spelled in Piper's alphabet, durations come from the graph.

Piper speaks espeak's IPA. What hibari writes as one letter may be several of Piper's ids (``A`` is ``eɪ``), and what
espeak writes as one (``ɚ``) may be two of hibari's symbols; the durations of the ids are folded back onto the symbols.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from voicechat.models.embedded.frontend import PAUSE, Mark, read_text
from voicechat.train.teacher import (
    Floats,
    Ints,
    Speech,
    finish,
    level,
    make_session,
    save_model,
    sentences,
)

HOP = 256
"""Samples of one frame of Piper's VITS voices, at their own rate."""
DURATIONS = "durations"
BREAK_SECONDS = 0.2
"""Silence put between sentences: Piper's own is shorter than a reader's."""
_SOUND_CHANNELS = 192
_FRAMES_PER_ID = 16

_VOWELS = frozenset("AIOQWYaeiouæɐɑɒɔəɚɛɜɪʊʌᵊᵻ")
_STRESS = frozenset("ˈˌ")
_SPELLED = {
    "A": "eɪ", "I": "aɪ", "O": "oʊ", "Q": "əʊ", "W": "aʊ", "Y": "ɔɪ", "ʤ": "dʒ", "ʧ": "tʃ", "ʣ": "dz", "ʦ": "ts",
    "ʥ": "dʑ", "ʨ": "tɕ", "ᵊ": "ə", "T": "ɾ", "u": "uː", "ɑ": "ɑː", "ɔ": "ɔː", "ɜ": "ɜː", "…": ".", "—": ",",
}  # fmt: skip
_SILENT = frozenset('"“”()→↓↗↘')
"""Marks that Piper's reader never passes on."""


def spell(symbols: str) -> list[tuple[int, str]]:
    """Hibari's symbols of one sentence to groups (number of symbols, espeak's letters)."""
    groups: list[tuple[int, str]] = []
    position = 0
    while position < len(symbols):
        here, after = symbols[position], symbols[position + 1 : position + 2]
        later = symbols[position + 2 : position + 3]
        coloured = after == "ɹ" and later not in _VOWELS and later not in _STRESS
        if here == "ə" and coloured:
            groups.append((2, "ɚ"))
        elif here == "ɜ" and coloured:
            groups.append((2, "ɜː"))
        elif here == "ɔ" and after == "ɹ":
            groups.append((1, "oː"))
        elif here == "i":
            groups.append((1, _long_i(symbols, position)))
        elif here in _SILENT:
            groups.append((1, ""))
        else:
            groups.append((1, _SPELLED.get(here, here)))
        position += groups[-1][0]
    return groups


def _long_i(symbols: str, position: int) -> str:
    """The end of "happy" is short, the vowel of "he" and "see" is long."""
    stressed = symbols[position - 1 : position] in _STRESS
    ends = not symbols[position + 1 : position + 2].strip(' ,.;:!?"”)…—')
    word = symbols[:position].rsplit(" ", 1)[-1]
    return "i" if ends and not stressed and any(letter in _VOWELS for letter in word) else "iː"


class PiperTeacher:
    """A Piper voice with one speaker. Its sound is brought to 24 kHz and to the level of the other teachers."""

    def __init__(self, model: Path, config: Path) -> None:
        """``model``: the voice's graph as :func:`prepare_piper` writes it; ``config``: its ``.onnx.json``.

        Raises ``ValueError`` for a voice of several speakers or of another alphabet than espeak's.
        """
        settings: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
        if int(settings.get("num_speakers", 1)) > 1:
            raise ValueError(f"{config.name}: a voice of several speakers is not supported")
        if settings.get("phoneme_type", "espeak") != "espeak":
            raise ValueError(f"{config.name}: phonemes are {settings['phoneme_type']!r}, not espeak's")
        self._ids: dict[str, list[int]] = settings["phoneme_id_map"]
        self._rate = int(settings["audio"]["sample_rate"])
        inference = settings.get("inference", {})
        self._scales = np.asarray(
            [inference.get("noise_scale", 0.667), inference.get("length_scale", 1.0), inference.get("noise_w", 0.8)],
            np.float32,
        )
        self._session = make_session(model)
        self._letters = _letters()

    def read(self, text: str) -> list[Mark]:
        """See :class:`voicechat.train.teacher.Teacher`."""
        return read_text(text)

    def speak(self, symbols: list[int], seed: int, text: str = "") -> Speech:
        """See :class:`voicechat.train.teacher.Teacher`."""
        from scipy.signal import resample_poly

        random = np.random.default_rng(seed)
        rest = np.zeros(int(BREAK_SECONDS * self._rate), np.float32)
        sounds: list[Floats] = []
        samples = np.zeros(len(symbols), np.int64)
        for number, (first, last) in enumerate(sentences(symbols)):
            if number:
                sounds.append(rest)
                samples[first] += len(rest)
            sound, durations = self._sentence(symbols[first : last + 1], random)
            sounds.append(sound)
            samples[first : last + 1] += durations
        ends = np.cumsum(samples) * 24_000 // self._rate
        common = np.gcd(24_000, self._rate)
        sound = resample_poly(np.concatenate(sounds), 24_000 // common, self._rate // common, window=("kaiser", 10.0))
        return finish(level(sound.astype(np.float32)), ends)

    def _sentence(self, symbols: list[int], random: np.random.Generator) -> tuple[Floats, Ints]:
        """Sound of one sentence at Piper's rate and the samples of each of its rows."""
        groups = spell("".join(self._letters.get(symbol, "") or " " for symbol in symbols[1:-1]))
        pad, begin, end = self._ids["_"], self._ids["^"], self._ids["$"]
        ids, owner = [*begin, *pad], [0] * (len(begin) + len(pad))
        for number, (_, letters) in enumerate(groups, 1):
            for letter in letters:
                known = self._ids.get(letter, [])
                ids += [part for one in known for part in (one, *pad)]
                owner += [number] * (len(known) * (1 + len(pad)))
        ids += end
        owner += [len(groups) + 1] * len(end)
        sound, frames = self._run(ids, random)
        spans = np.bincount(owner, frames, minlength=len(groups) + 2).astype(np.int64) * HOP
        spans[-1] += len(sound) - spans.sum()
        rows = [int(spans[0])]
        for (count, _), span in zip(groups, spans[1:-1].tolist(), strict=True):
            rows += np.diff(np.arange(count + 1) * span // count).tolist()
        return sound, np.asarray([*rows, int(spans[-1])], np.int64)

    def _run(self, ids: list[int], random: np.random.Generator) -> tuple[Floats, Ints]:
        count = len(ids)
        feeds = {
            "input": np.asarray([ids], np.int64),
            "input_lengths": np.asarray([count], np.int64),
            "scales": self._scales,
            "noise_durations": random.standard_normal((1, 2, count), np.float32),
            "noise_sound": random.standard_normal((1, _SOUND_CHANNELS, _FRAMES_PER_ID * count + 200), np.float32),
        }
        sound, frames = self._session.run(None, feeds)
        return sound.reshape(-1), frames.reshape(-1).astype(np.int64)


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    text = (files("hibari") / "assets" / "vocab.json").read_text(encoding="utf-8")
    return {int(number): str(letter) for letter, number in json.loads(text).items() if int(number) != PAUSE}


def prepare_piper(source: Path, path: Path) -> None:
    """Write a Piper voice's graph with its durations as one more output and its noise as inputs.

    The noise as inputs is what makes a seed give the same sound. Needs ``onnx``. Raises ``ValueError`` when the graph
    is not a VITS graph as Piper exports it.
    """
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(str(source))
    graph = model.graph
    rounded = [node for node in graph.node if node.op_type == "Ceil"]
    noises = [node for node in graph.node if node.op_type == "RandomNormalLike"]
    if len(rounded) != 1 or len(noises) != 2 or len([node for node in noises if "/dp/" in node.name]) != 1:
        raise ValueError(f"{source}: not a VITS graph as Piper exports it")
    graph.node.append(helper.make_node("Identity", [rounded[0].output[0]], [DURATIONS], name=DURATIONS))
    graph.output.append(helper.make_tensor_value_info(DURATIONS, TensorProto.FLOAT, [1, None, None]))
    graph.initializer.append(helper.make_tensor("noise_start", TensorProto.INT64, [3], [0, 0, 0]))
    for node in noises:
        name = "noise_durations" if "/dp/" in node.name else "noise_sound"
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, None, None]))
        shape = helper.make_node("Shape", [node.input[0]], [f"{name}_shape"], name=f"{name}_shape")
        cut = helper.make_node("Slice", [name, "noise_start", f"{name}_shape"], [node.output[0]], name=f"{name}_cut")
        place = list(graph.node).index(node)
        graph.node.remove(node)
        graph.node.insert(place, shape)
        graph.node.insert(place + 1, cut)
    onnx.checker.check_model(model)
    save_model(model, path)
