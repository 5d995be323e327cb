"""Captured graphs of the VoiceBox make the sound that the plain net makes on the CPU, whatever the batch."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from voicechat.contract.family import DecoderPlace
from voicechat.contract.messages import Decode
from voicechat.models.batches import GraphBatches, PlainBatches
from voicechat.models.embedded.alphabet import NONE_SYMBOL, SYMBOL_WINDOW
from voicechat.models.embedded.decoder import VoiceBoxNetBatch, pack_steps
from voicechat.models.embedded.voicebox import CODES, TOKEN_SAMPLES, load_voicebox
from voicechat.models.embedded.weights import WEIGHTS_DIR

WEIGHTS = Path(os.environ.get("VOICECHAT_MODEL__WEIGHTS") or WEIGHTS_DIR)
CLOSE = 20.0
"""Of 32767, root mean square. float32 is summed in another order, and then some parts in ten million of a pitch decide
at a few samples whether one harmonic more has its place below 11.5 kHz."""
CLOSE_CYCLES = 1e-4
"""The phase is the sum of two seconds' pitches: some hundred cycles."""


def place(device: str, max_batch: int, *, graphs: bool = False, lengths: tuple[int, ...] = ()) -> DecoderPlace:
    return DecoderPlace(device=torch.device(device), graphs=graphs, threads=1, max_batch=max_batch, lengths=lengths)


def chunks(rng: np.random.Generator, batch: int, steps: int) -> list[Decode]:
    """Chunks of one length from anywhere in a reply, with as much context as it happens."""
    made = []
    for number in range(batch):
        left = int(rng.integers(steps))
        emit = int(rng.integers(1, steps - left + 1))
        start = (left + int(rng.integers(500))) * TOKEN_SAMPLES
        codes = tuple(rng.integers(0, CODES, steps).tolist())
        symbols = rng.integers(0, NONE_SYMBOL + 1, steps * SYMBOL_WINDOW, np.uint8).tobytes()
        made.append(
            Decode(number, 0, pack_steps(codes, symbols), left, emit, start, state=struct.pack("<d", rng.random()))
        )
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_batches_of_every_size_and_odd_lengths(graphs: bool) -> None:
    rng = np.random.default_rng(1)
    plain = PlainBatches(VoiceBoxNetBatch(load_voicebox(WEIGHTS)), place("cpu", 1))
    net = VoiceBoxNetBatch(load_voicebox(WEIGHTS).to("cuda:0"))
    decoder = GraphBatches(net, place("cuda:0", 8, graphs=graphs, lengths=(8, 50)))
    for length in (8, 50, 13):
        for size in (1, 2, 3, 5, 8):
            batch = chunks(rng, size, length)
            (ours, our_phases), (theirs, their_phases) = decoder.run(batch), plain.run(batch)
            assert ours.shape == theirs.shape == (size, length * TOKEN_SAMPLES)
            assert ours.dtype == np.int16
            assert np.sqrt(((ours.astype(np.float64) - theirs) ** 2).mean(1)).max() <= CLOSE
            apart = np.array(our_phases) - their_phases
            assert np.abs(apart - np.rint(apart)).max() <= CLOSE_CYCLES
