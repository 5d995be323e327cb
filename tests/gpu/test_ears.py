"""The ears on a GPU, in float16 and by captured graphs, hear what the same ears hear on the CPU in float32."""

from __future__ import annotations

import json
import os
import time
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
import torch

from voicechat.media.resample import resample
from voicechat.models.ears.pieces import RATE
from voicechat.models.ears.whisper_torch import TorchEars

FOLDER = Path(os.environ.get("VOICECHAT_HOME") or Path.home() / ".cache/voicechat") / "ears" / "whisper-tiny.en"
QUESTIONS = (
    "What is the capital of France?",
    "Tell me a short story about a little dragon who could not sleep.",
    "How many minutes are there in a week?",
)


def alike(ours: list[str], plain: list[str]) -> bool:
    """True if no text differs by more than a word that was nearly as likely as another."""
    pairs = zip(ours, plain, strict=True)
    return all(SequenceMatcher(None, one, other, autojunk=False).ratio() >= 0.9 for one, other in pairs)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_batches_of_every_size(graphs: bool) -> None:
    hibari = pytest.importorskip("hibari")
    voice = hibari.Hibari()
    said = [resample(np.asarray(voice(text), np.float32), hibari.SAMPLE_RATE, RATE) for text in QUESTIONS]
    sounds = [*said, np.zeros(RATE, np.float32), np.concatenate([*said, *said, *said, *said])]
    plain = TorchEars(FOLDER, device=torch.device("cpu"), max_batch=4).transcribe(sounds)
    assert "France" in plain[0]
    ears = TorchEars(FOLDER, device=torch.device("cuda", 0), max_batch=8, graphs=graphs)
    ears.warm_up()
    for count in (1, 2, 3, 5):
        assert alike(ears.transcribe(sounds[:count]), plain[:count])
    assert alike(ears.transcribe(sounds[:4] * 5), plain[:4] * 5)
    ears.check()
    for count in (1, 8, 64):
        began = time.perf_counter()
        for _ in range(10):
            ears.transcribe([sounds[0]] * count)
        print(json.dumps({"graphs": graphs, "sounds": count, "ms": (time.perf_counter() - began) * 100}))
