"""Fits the endpointing model to the pauses of the tuning set: ``python -m voicechat.bench.fit_endpointing``.

Weights are found by Newton's method with an L2 penalty, on all pauses but those of the fold that is judged, five folds
by text (a text's takes are in one fold), and at last on all of them. What is printed and kept beside the weights is
what the folds gave. Only the tuning set is looked at.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voicechat.assemble import assemble
from voicechat.bench.pauses import LEAST_MS, Pause, pauses
from voicechat.bench.script import Expect
from voicechat.bench.script_set import Studio, entries
from voicechat.bench.script_tuning import TUNING
from voicechat.bench.simulated import Asr, Memory
from voicechat.config import load_settings
from voicechat.media.detectors import SILERO_FILE, SMART_TURN_FILE
from voicechat.media.silero import Silero
from voicechat.media.smart_turn import SmartTurn
from voicechat.realtime.endpoint_model import FEATURES, features
from voicechat.realtime.lexicon import lexicon
from voicechat.turn_taking import turn_policy

Rows = npt.NDArray[np.float64]

KNOWN = {
    "both": tuple(range(len(FEATURES))),
    "by_words": tuple(FEATURES.index(name) for name in ("bias", "complete", "question", "open end", "words")),
    "by_sound": tuple(FEATURES.index(name) for name in ("bias", "sound")),
}
"""Which features each of the models may look at."""

PENALTY = 0.5
FOLDS = 5


def fit(rows: Rows, ends: Rows, penalty: float = PENALTY) -> Rows:
    """Weights (shape ``[features]``) of a logistic regression on ``rows`` (``[n, features]``; the first is the bias,
    which is not penalised) and ``ends`` (0 or 1)."""
    weights = np.zeros(rows.shape[1])
    damp = penalty * np.eye(rows.shape[1])
    damp[0, 0] = 1e-6
    for _ in range(50):
        chance = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (ends - chance) - damp @ weights
        step = np.linalg.solve((rows * (chance * (1 - chance))[:, None]).T @ rows + damp, slope)
        weights = weights + step
        if float(np.abs(step).max()) < 1e-9:
            break
    return weights


def folds(found: Sequence[Pause]) -> npt.NDArray[np.int64]:
    """The fold of each pause, by the text that it is of."""
    texts = [re.sub(r"^(.*?-\d\d)(-\d+)?$", r"\1", pause.name) for pause in found]
    order = {text: index % FOLDS for index, text in enumerate(dict.fromkeys(texts))}
    return np.array([order[text] for text in texts])


def fitted(found: Sequence[Pause]) -> dict[str, Any]:
    """What the file holds: weights, how long pauses are held, and what the folds gave."""
    words = lexicon("en")
    rows = np.array([features(pause.text, pause.probability, words) for pause in found])
    ends = np.array([pause.went_on_ms is None for pause in found], np.float64)
    part = folds(found)
    weights, judged = {}, {}
    for name, columns in KNOWN.items():
        some = rows[:, columns]
        chance = np.zeros(len(ends))
        for fold in range(FOLDS):
            other = fit(some[part != fold], ends[part != fold])
            chance[part == fold] = 1 / (1 + np.exp(-some[part == fold] @ other))
        whole = np.zeros(len(FEATURES))
        whole[list(columns)] = fit(some, ends)
        weights[name] = [round(float(value), 4) for value in whole]
        judged[name] = {"log_loss": round(log_loss(chance, ends), 4), "auc": round(auc(chance, ends), 4)}
    held = [pause.went_on_ms - LEAST_MS for pause in found if pause.went_on_ms is not None]
    return {
        "features": list(FEATURES),
        "weights": weights,
        "from_ms": LEAST_MS,
        "hold_ms": round(float(np.mean(held)), 1),
        "about": {
            "set": "tuning",
            "pauses": len(found),
            "ends": int(ends.sum()),
            "voices": sorted({pause.voice for pause in found}),
            "cross_validation": judged,
            "penalty": PENALTY,
            "made": datetime.date.today().isoformat(),
            "command": "python -m voicechat.bench.fit_endpointing",
        },
    }


def log_loss(chance: Rows, ends: Rows) -> float:
    """Mean of the surprise in nats."""
    sure = np.clip(np.where(ends > 0.5, chance, 1 - chance), 1e-9, 1.0)
    return float(-np.log(sure).mean())


def auc(chance: Rows, ends: Rows) -> float:
    """How often an end has the higher probability than a pause that is none."""
    ends_, holds = chance[ends > 0.5], chance[ends < 0.5]
    above = (ends_[:, None] > holds[None, :]).mean() + 0.5 * (ends_[:, None] == holds[None, :]).mean()
    return float(above)


def tuning_pauses() -> list[Pause]:
    """All pauses of the tuning set, by the models of the default settings."""
    settings = load_settings()
    paths = assemble(settings)
    data = settings.data_dir.expanduser()
    memory = Memory(data / "bench-heard.json")
    studio = Studio(data / "bench-voices", TUNING)
    wanted = [one for one in studio.possible(entries(TUNING)) if one.expect in (Expect.ONE_TURN, Expect.INTERRUPTION)]
    found = list(
        pauses(
            studio.record(wanted), Silero(paths.detectors / SILERO_FILE), SmartTurn(paths.detectors / SMART_TURN_FILE),
            Asr(paths.ears, settings.ears.beam_size, memory), memory, turn_policy(settings.turns),
        )
    )  # fmt: skip
    memory.save()
    return found


def main() -> int:
    """Fit, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m voicechat.bench.fit_endpointing", description=__doc__)
    default = Path(__file__).resolve().parent.parent / "realtime" / "endpointing.json"
    parser.add_argument("--out", type=Path, default=default, metavar="FILE", help="where the weights go")
    options = parser.parse_args()
    made = fitted(tuning_pauses())
    options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(made["about"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
