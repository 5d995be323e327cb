"""How steps, blocks and samples of Token2Wav hang together, out of ``config.json``. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SAMPLE_RATE = 24_000


@dataclass(frozen=True, slots=True)
class SoundShape:
    """Of the model's ``token2wav_config``; what it leaves out is as the published models have it."""

    repeats: int
    """Frames of a spectrogram that a code makes."""
    block: int
    """Codes of a block: the flow's layers look at their own, and a few at the one before or behind."""
    codes: int
    """Ids below it can be made sound of."""
    frame_samples: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> SoundShape:
        """From the JSON object."""
        dit, vocoder = config.get("dit_config") or {}, config.get("bigvgan_config") or {}
        repeats = dit.get("repeats", 2)
        return SoundShape(
            repeats=repeats,
            block=-(-dit.get("block_size", 24) // repeats),
            codes=dit.get("num_embeds", 8193) + 1,
            frame_samples=math.prod(vocoder.get("upsample_rates", (5, 3, 2, 2, 2, 2))),
        )

    @property
    def step_samples(self) -> int:
        """Samples of a code."""
        return self.repeats * self.frame_samples
