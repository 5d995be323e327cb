"""What is known of a sound and its text by the rules that the embedded voice is trained with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voicechat.media.resample import resample

Floats = npt.NDArray[np.float32]

_MARKS = "ˈˌː"
"""Signs of hibari's alphabet that are no sound of their own."""


def sounds_of(text: str) -> int:
    """How many speech sounds (phonemes) the text has, by the rules that the product reads by."""
    import json
    from importlib.resources import files

    from voicechat.models.embedded.frontend import SPACE, read_text

    alphabet = json.loads((files("hibari") / "assets" / "vocab.json").read_text(encoding="utf-8"))
    silent = {int(alphabet[mark]) for mark in _MARKS if mark in alphabet}
    return sum(mark.symbol > SPACE and mark.symbol not in silent for mark in read_text(text))


@dataclass(frozen=True, slots=True)
class Pitch:
    """Pitch of a voice: median in Hz, and how far apart its 5th and 95th percentile are, in semitones."""

    median_hz: float
    range_semitones: float


def pitch(samples: Floats, rate: int) -> Pitch | None:
    """Pitch of float32 ``[n]`` at ``rate`` Hz, as training follows it; None if too little of it is voiced."""
    import torch

    from voicechat.models.embedded.source import HOP, SAMPLE_RATE
    from voicechat.train.pitch import track_pitch

    sound = torch.from_numpy(resample(samples.astype(np.float32), rate, SAMPLE_RATE))
    track = track_pitch(sound[None, : len(sound) // HOP * HOP])
    voiced = track.pitch[track.voiced].numpy()
    if len(voiced) < 10:
        return None
    low, median, high = np.percentile(voiced, (5, 50, 95))
    return Pitch(float(median), float(12 * np.log2(high / low)))
