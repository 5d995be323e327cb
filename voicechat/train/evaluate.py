"""Step ``evaluate``: the packed voice on held-out replies, judged by a transcriber beside the teacher. Runs on a CPU.

Finished systems are kept in the work folder (``evaluation/``), so that the step can be resumed.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.models.embedded.talker import load_talker
from voicechat.models.embedded.voicebox import FULL_LEFT_CONTEXT, RIGHT_CONTEXT, VoiceBoxNet, load_voicebox
from voicechat.train.alignment import windows
from voicechat.train.common import SAMPLE_RATE, Int16, Work, to_pcm, write_arrays, write_json
from voicechat.train.generate import Prompt, generate
from voicechat.train.pack import EVALUATION_FILE
from voicechat.train.talker import HELD_FILE
from voicechat.train.teachers import VoicePlan
from voicechat.train.transcriber import Transcriber
from voicechat.train.transcripts import compare, error_rate

logger = logging.getLogger("voicechat.train")

Sounds = dict[str, Int16]
MOST_CHARACTERS = 420
LOW_LENGTH, HIGH_LENGTH = 0.6, 1.6


@dataclass(frozen=True, slots=True)
class Item:
    """One held-out reply: text, symbol rows, hidden states per row, and the codes of the teacher's sound.

    ``pointers``: the row that is spoken at the step of each code.
    """

    key: str
    text: str
    thinker: str | None
    symbols: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.int16]
    pointers: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16] | None

    @property
    def said(self) -> Said:
        """The teacher's sound as codes."""
        seen = windows(self.symbols, self.pointers.astype(np.int64))
        return Said(self.codes.astype(np.int64).tolist(), torch.from_numpy(seen.astype(np.int64)))


@dataclass(frozen=True, slots=True)
class Said:
    """A spoken reply: codes [T], and the windows of symbols at their steps, long [T, 9]."""

    codes: list[int]
    windows: Tensor


def fit_to_judge(text: str) -> bool:
    """Transcribers drop what is said twice, and long replies take long: such texts are left out."""
    sentences = [part.strip().lower() for part in re.split(r"[.!?\n]+", text) if part.strip()]
    return len(text) <= MOST_CHARACTERS and len(set(sentences)) == len(sentences)


def load_items(work: Work, count: int, voice: str) -> list[Item]:
    """The first held-out replies that are fit to judge, the Thinkers' in turn.

    Raises ValueError if the step ``talker`` wrote them without pointers.
    """
    listed = json.loads(work.file("held.json").read_text(encoding="utf-8"))
    sets: dict[str, list[dict[str, Any]]] = {}
    for entry in (entry for entry in listed if fit_to_judge(entry["text"])):
        sets.setdefault(str(entry["key"]).rsplit("-", 1)[0], []).append(entry)
    turns = [entry for group in zip(*sets.values(), strict=False) for entry in group]
    with np.load(work.file(HELD_FILE)) as data:
        if not any(".pointers." in name for name in data.files):
            raise ValueError(f"{work.file(HELD_FILE)} does not say where each code stands: run the step 'talker' again")
        return [
            Item(
                entry["key"], entry["text"], entry["thinker"], data[f"{entry['key']}.symbols"],
                data[f"{entry['key']}.codes.{voice}"], data[f"{entry['key']}.pointers.{voice}"],
                data[f"{entry['key']}.hidden"] if entry["thinker"] else None,
            )
            for entry in turns[:count]
        ]  # fmt: skip


@torch.inference_mode()
def decode_chunked(voicebox: VoiceBoxNet, said: Said, chunk: int, left: int, voice: int = 0) -> npt.NDArray[np.float32]:
    """Sound of a reply as it is streamed: ``chunk`` tokens at a time with ``left`` before and two after them."""
    codes, tokens, voices = said.codes, torch.tensor([said.codes]), torch.tensor([voice])
    phase = torch.zeros(1, dtype=torch.float64)
    parts = []
    for start in range(0, len(codes), chunk):
        end = min(len(codes), start + chunk)
        first, last = max(0, start - left), min(len(codes), end + RIGHT_CONTEXT)
        places = torch.tensor([[first], [start - first], [end - first]])
        seen = said.windows[None, first:last]
        sound, phase = voicebox.stream(tokens[:, first:last], seen, voices, *places, phase)
        parts.append(sound[0, (start - first) * 960 : (end - first) * 960])
    return torch.cat(parts).numpy() if parts else np.zeros(0, np.float32)


class Evaluation:
    """Speaks, transcribes and scores; one entry per system."""

    def __init__(self, work: Work, weights: Path, whisper: Path | None, count: int, plan: VoicePlan) -> None:
        if whisper is None:
            raise ValueError("evaluate needs --whisper: the folder of a CTranslate2 Whisper model")
        self.work = work
        self.items = load_items(work, count, plan.name)
        self.plan = plan
        self.talker = load_talker(weights)
        if plan.name not in self.talker.config.voices:
            raise ValueError(f"{weights} has the voices {', '.join(self.talker.config.voices)}, not {plan.name}")
        self.voice = self.talker.config.voices.index(plan.name)
        self.voicebox = load_voicebox(weights)
        self.names = [name for name, _ in self.talker.config.thinkers]
        self.said: dict[str, dict[str, Said]] = {}
        self._transcribe = Transcriber(whisper)

    def teacher(self) -> Sounds:
        """The teacher speaking the same rows."""
        self.plan.prepare(self.work)
        speaker = self.plan.make(self.work)
        return {item.key: speaker.speak(item.symbols.tolist(), 0, item.text).pcm for item in self.items}

    def resynthesis(self) -> Sounds:
        """The VoiceBox on the codes of the teacher's sound."""
        return {item.key: to_pcm(self._decode(item.said)) for item in self.items}

    def _decode(self, said: Said, chunk: int | None = None, left: int = 8) -> npt.NDArray[np.float32]:
        return decode_chunked(self.voicebox, said, chunk or max(1, len(said.codes)), left, self.voice)

    def speak(self, temperature: float, hidden: bool) -> dict[str, Said]:
        """The Talker's codes for all items; kept, so that chunk modes share them."""
        name = f"{'hidden' if hidden else 'text'}-{temperature}"
        if name not in self.said:
            prompts = []
            for item in self.items:
                states = (
                    torch.from_numpy(item.hidden.astype(np.float32)) if hidden and item.hidden is not None else None
                )
                number = self.names.index(item.thinker) if item.thinker in self.names else 0
                prompts.append(Prompt(torch.from_numpy(item.symbols.astype(np.int64)), states, number, self.voice))
            begun = time.monotonic()
            made = generate(self.talker, prompts, temperature=temperature)
            logger.info(
                "evaluate %s: %d of %d ended, longest dwell %d steps, %.0f s",
                name, sum(one.ended for one in made), len(made), max(one.longest_dwell for one in made),
                time.monotonic() - begun,
            )  # fmt: skip
            spoken = (Said(one.codes, one.windows) for one in made)
            self.said[name] = dict(zip((item.key for item in self.items), spoken, strict=True))
        return self.said[name]

    def spoken(self, temperature: float, hidden: bool, chunk: int | None = None, left: int = 8) -> Sounds:
        """Talker and VoiceBox, whole or in chunks."""
        out = {}
        for key, said in self.speak(temperature, hidden).items():
            out[key] = to_pcm(self._decode(said, chunk, left))
        return out

    def systems(self) -> dict[str, Callable[[], Sounds]]:
        """Everything that is measured, the most important first."""
        out: dict[str, Callable[[], Sounds]] = {
            "teacher": self.teacher,
            "Talker T 0.3, text only": lambda: self.spoken(0.3, False),
            "Talker T 0.3, with hidden states": lambda: self.spoken(0.3, True),
            "VoiceBox on the teacher's codes": self.resynthesis,
            "Talker T 0.3, hidden, chunks of 4 (left 8)": lambda: self.spoken(0.3, True, 4, 8),
            "Talker T 0.3, hidden, chunks of 25 (full left)": lambda: self.spoken(0.3, True, 25, FULL_LEFT_CONTEXT),
        }
        for temperature in (0.0, 0.6):
            for hidden in (False, True):
                label = f"T {temperature}" if temperature else "greedy"
                label = f"Talker {label}, {'with hidden states' if hidden else 'text only'}"
                out[label] = partial(self.spoken, temperature, hidden)
        return out

    def run(self) -> dict[str, dict[str, Any]]:
        """Measure all systems; returns their scores by name."""
        scores: dict[str, dict[str, Any]] = {}
        teacher_lengths: dict[str, int] = {}
        for number, (name, make) in enumerate(self.systems().items()):
            path = self.work.file("evaluation", self.plan.name, f"{number}.json")
            if path.exists():
                heard = json.loads(path.read_text(encoding="utf-8"))
            else:
                sounds = make()
                for item in self.items[:3]:
                    self.work.keep_sample(f"evaluate-{self.plan.name}-{number}-{item.key}", sounds[item.key])
                write_arrays(self.work.file("evaluation", self.plan.name, f"{number}.npz"), compress=True, **sounds)
                texts = {key: self._transcribe(sound) for key, sound in sounds.items()}
                heard = {"name": name, "heard": texts, "samples": {key: len(sound) for key, sound in sounds.items()}}
                write_json(path, heard)
            if name == "teacher":
                teacher_lengths = heard["samples"]
            scores[name] = self.score(heard, teacher_lengths)
            logger.info("evaluate %s: %s", name, scores[name])
            self._report(scores)
        return scores

    def score(self, heard: dict[str, Any], teacher: dict[str, int]) -> dict[str, Any]:
        """Word error rate with a 95 % bootstrap interval, and length beside the teacher's."""
        compared = [compare(item.text, heard["heard"][item.key]) for item in self.items]
        wer, low, high = error_rate([(one.errors, one.words) for one in compared])
        ratios = np.asarray([heard["samples"][item.key] / max(1, teacher[item.key]) for item in self.items])
        return {
            "wer": round(wer, 2),
            "low": round(low, 2),
            "high": round(high, 2),
            "words": sum(one.words for one in compared),
            "length": f"{ratios.mean():.2f} ({ratios.min():.2f}-{ratios.max():.2f})",
            "outside": int(((ratios < LOW_LENGTH) | (ratios > HIGH_LENGTH)).sum()),
            "seconds": round(sum(heard["samples"].values()) / SAMPLE_RATE),
        }

    def _report(self, scores: dict[str, dict[str, Any]]) -> None:
        how = (
            f"{len(self.items)} held-out replies of both Thinkers (at most {MOST_CHARACTERS} characters, no sentence "
            "twice), transcribed by Whisper tiny.en (faster-whisper, int8, beam 5) in pieces of at most 14 s, text "
            "normalised by whisper-normalizer; in brackets the 95 % bootstrap interval over replies. The teacher "
            "speaks the same rows."
        )
        path = self.work.file(EVALUATION_FILE)
        kept = json.loads(path.read_text(encoding="utf-8"))["voices"] if path.exists() else {}
        write_json(path, {"how": how, "voices": kept | {self.plan.name: scores}})


def evaluate_step(work: Work, weights: Path, whisper: Path | None, count: int, plans: list[VoicePlan]) -> None:
    """Judge packed weights, voice by voice, on the work folder's held-out replies."""
    torch.set_num_threads(1)
    for plan in plans:
        Evaluation(work, weights, whisper, count, plan).run()
