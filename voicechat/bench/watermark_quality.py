"""What the mark does to how clips sound: PESQ (ITU-T P.862.2, wideband), DNSMOS and WER, marked and not.

PESQ comes with the package ``pesq``, DNSMOS with ``speechmos``; what is not installed is left out. What was said is
known where a text of the same name lies beside the clip.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voicechat.bench.voice_judges import HEARD, LOW_RATE, Panel
from voicechat.bench.watermark_sounds import read_sound
from voicechat.contract.sound import PCM_RATE
from voicechat.media.resample import resample, to_float
from voicechat.train.transcripts import compare, error_rate
from voicechat.watermark.embed import Embedder
from voicechat.watermark.keys import Key

_EARS = "tiny.en"
JOB = "quality "
"""Before a clip's name: its record."""


def quality_of(path: Path, ears: Path | None) -> list[dict[str, Any]]:
    """The judges' words on one clip, marked with a key of its own and not. ``ears``: a faster-whisper model, if WER is
    wanted.
    """
    pcm = read_sound(path)
    rng = np.random.default_rng(list(path.stem.encode()))
    embedder = Embedder(Key(rng.bytes(32)), int(rng.integers(1 << 16)))
    marked = np.concatenate([embedder.push(pcm), embedder.finish()])
    record: dict[str, Any] = {"job": f"{JOB}{path.stem}", "quality": path.stem}
    if importlib.util.find_spec("pesq") is not None:
        low, low_marked = (resample(to_float(one), PCM_RATE, LOW_RATE) for one in (pcm, marked))
        record["pesq"] = float(importlib.import_module("pesq").pesq(LOW_RATE, low, low_marked, "wb"))
    panel = _panel(ears)
    text = path.with_suffix(".txt")
    hears = ears is not None and text.exists()
    asked = ["dnsmos"] * ("dnsmos" in panel.names) + [f"{HEARD}{_EARS}"] * hears
    for name, sound in (("unmarked", pcm), ("marked", marked)):
        words = panel.judge(sound, tuple(asked))
        if "dnsmos" in words:
            record[f"dnsmos_{name}"] = words["dnsmos"]["ovrl"]
        if hears:
            found = compare(text.read_text(encoding="utf-8"), words[f"{HEARD}{_EARS}"])
            record[f"wer_{name}"] = [found.errors, found.words]
    return [record]


@functools.cache
def _panel(ears: Path | None) -> Panel:
    """The judges, once for each process; what they need they load when they are asked."""
    return Panel({_EARS: ears or Path()})


def quality_summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the clips; the drop of DNSMOS with its standard error; WER over all words."""
    summary: dict[str, Any] = {"clips": len(records)}
    if pesq := [one["pesq"] for one in records if "pesq" in one]:
        summary |= {"pesq_wb": float(np.mean(pesq)), "pesq_wb_lowest": min(pesq)}
    judged = [one for one in records if "dnsmos_marked" in one]
    if judged:
        unmarked, marked = (np.array([one[f"dnsmos_{name}"] for one in judged]) for name in ("unmarked", "marked"))
        drop = unmarked - marked
        summary |= {
            "dnsmos_unmarked": float(unmarked.mean()),
            "dnsmos_marked": float(marked.mean()),
            "dnsmos_drop": float(drop.mean()),
            "dnsmos_drop_error": float(drop.std(ddof=1) / math.sqrt(len(drop))) if len(drop) > 1 else None,
        }
    if heard := [one for one in records if "wer_marked" in one]:
        summary["words"] = sum(one["wer_marked"][1] for one in heard)
        for name in ("unmarked", "marked"):
            rate, low, high = error_rate([tuple(one[f"wer_{name}"]) for one in heard])
            summary |= {f"wer_{name}": rate, f"wer_{name}_interval": [low, high]}
    return summary
