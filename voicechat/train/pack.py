"""Step ``pack``: the trained nets as the package's weights, with a model card that says what was measured."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from voicechat.models.embedded.weights import (
    CARD_FILE,
    TALKER_FILE,
    VOICE_FILE,
    VOICEBOX_FILE,
    TalkerConfig,
    VoiceBoxConfig,
    VoiceConfig,
    load_tensors,
    load_voice_config,
    save_tensors,
    save_voice,
    write_atomic,
)
from voicechat.train.common import TEACHERS_FILE, Work, load_checkpoint
from voicechat.train.talker import TALKER_FILE as TALKER_STATE
from voicechat.train.voicebox import DECODER_FILE, PLAIN_DECODER_FILE

logger = logging.getLogger("voicechat.train")

MOST_MEBIBYTES = 64.0
EVALUATION_FILE = "evaluation.json"
TRAINING_FILE = "training.json"


def pack_step(work: Work, out: Path, talker: TalkerConfig, voicebox: VoiceBoxConfig, plain: bool = False) -> None:
    """Write the weights folder; ``plain``: with the decoder as it was before the GAN.

    What a folder that is written anew says of its voices, and its advised sampling, stay.
    Raises ``FileNotFoundError`` before the nets are trained.
    """
    states = [_trained(work, name) for name in (TALKER_STATE, _decoder_file(plain))]
    voices = work.voices()
    talker, voicebox = replace(talker, voices=voices), replace(voicebox, voices=len(voices))
    known = load_voice_config(out) if (out / VOICE_FILE).exists() else VoiceConfig()
    about = {voice: known.about[voice] for voice in voices if voice in known.about}
    save_voice(out, replace(known, talker=talker, voicebox=voicebox, about=about), *states)
    size = sum((out / name).stat().st_size for name in (TALKER_FILE, VOICEBOX_FILE)) / 2**20
    if size > MOST_MEBIBYTES:
        raise ValueError(f"weights take {size:.1f} MiB, more than {MOST_MEBIBYTES:g}")
    teachers = _read(work, TEACHERS_FILE)
    card = model_card(teachers, _read(work, TRAINING_FILE), _read(work, EVALUATION_FILE))
    write_atomic(out / CARD_FILE, card.encode())
    logger.info("packed %.1f MiB into %s", size, out)


def pack_decoder(work: Work, weights: Path, out: Path, plain: bool = False) -> None:
    """Write a weights folder that differs from ``weights`` in its decoder alone: the one of the step ``decoder``.

    Raises ``FileNotFoundError`` before it is trained, ``ValueError`` where its shape is another.
    """
    state = _trained(work, _decoder_file(plain))
    before = load_tensors(weights / VOICEBOX_FILE)
    if {name: value.shape for name, value in before.items()} != {name: value.shape for name, value in state.items()}:
        raise ValueError(f"the trained decoder has another shape than that of {weights}")
    out.mkdir(parents=True, exist_ok=True)
    for name in (TALKER_FILE, VOICE_FILE, CARD_FILE):
        if out.resolve() != weights.resolve() and (weights / name).exists():
            write_atomic(out / name, (weights / name).read_bytes())
    save_tensors(out / VOICEBOX_FILE, state)
    logger.info("packed a new decoder beside the Talker of %s into %s", weights, out)


def _decoder_file(plain: bool) -> str:
    return PLAIN_DECODER_FILE if plain else DECODER_FILE


def _trained(work: Work, name: str) -> dict[str, torch.Tensor]:
    state = load_checkpoint(work.file(name), torch.device("cpu"))
    if state is None:
        raise FileNotFoundError(f"{work.file(name)} is missing: train first")
    return state


def _read(work: Work, name: str) -> dict[str, Any]:
    path = work.file(name)
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return data


def model_card(teachers: dict[str, str], training: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """The card's text (Markdown)."""
    lines = [
        "# Voice of the embedded model: Talker and VoiceBox",
        "",
        f"Trained from nothing by `voicechat train` (this repository). English; voices: {', '.join(teachers)}.",
        "",
        "## What it learned from",
        "- Speech, all of it made by text-to-speech programs; no recording of a person was used by us:",
        *(f"  - {name}: {teacher}" for name, teacher in teachers.items()),
        "- Texts: example sentences and definitions of WordNet 3.0 (Princeton University, WordNet licence: free use",
        "  with its notice), sentences made by rule, replies of SmolLM2-135M-Instruct and",
        "  Qwen2.5-Coder-0.5B-Instruct (both Apache-2.0).",
        "- Rows: phonemes by hibari's lexicon and rules; hidden states of the two Thinkers.",
        "The texts and the speech are not part of the package; the steps make them again.",
    ]
    if training:
        lines += ["", "## Training", *(f"- {key}: {value}" for key, value in training.items())]
    if evaluation:
        lines += ["", "## Measured", str(evaluation.get("how", ""))]
        for voice, systems in evaluation.get("voices", {}).items():
            lines += ["", f"| {voice} | WER % | length, x the teacher's |", "|---|---|---|"]
            for name, row in systems.items():
                lines.append(
                    f"| {name} | {row['wer']:.1f} ({row['low']:.1f}-{row['high']:.1f}) | {row.get('length', '')} |"
                )
        lines += ["", *(f"- {note}" for note in evaluation.get("notes", []))]
    lines += [
        "",
        "## Limits",
        "English only; numbers, names and abbreviations are read as hibari's rules read them; nobody listened: all",
        "judgements above are by a transcriber.",
        "",
    ]
    return "\n".join(lines)
