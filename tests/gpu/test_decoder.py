"""Captured graphs of the VoiceBox make the sound that the plain net makes on the CPU, whatever the batch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from voicechat.models.embedded.voicebox import load_voicebox
from voicechat.models.embedded.weights import WEIGHTS_DIR
from voicechat.stages.decoder import GraphDecoder, PlainDecoder

WEIGHTS = Path(os.environ.get("VOICECHAT_MODEL__WEIGHTS") or WEIGHTS_DIR)
CLOSE = 40
"""Of 32767: float32 summed in another order."""


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_batches_of_every_size_and_odd_lengths(graphs: bool) -> None:
    rng = np.random.default_rng(1)
    plain = PlainDecoder(load_voicebox(WEIGHTS))
    decoder = GraphDecoder(load_voicebox(WEIGHTS), (8, 50), 8, torch.device("cuda", 0), graphs=graphs)
    for length in (8, 50, 13):
        for batch in (1, 2, 3, 5, 8):
            codes = rng.integers(0, 4375, (batch, length)).tolist()
            ours, theirs = decoder.decode(codes, [0] * batch), plain.decode(codes, [0] * batch)
            assert ours.shape == theirs.shape == (batch, length * 960)
            assert ours.dtype == np.int16
            assert int(np.abs(ours.astype(np.int32) - theirs).max()) <= CLOSE
