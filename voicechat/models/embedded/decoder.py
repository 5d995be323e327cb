"""Chunks of steps to sound. A step is a code and the symbols that the Talker saw; the state is the pulse train's
phase."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voicechat.contract.family import Decoded, DecoderPlace
from voicechat.contract.messages import Decode
from voicechat.models.batches import Batches, make_batches
from voicechat.models.embedded.alphabet import NONE_SYMBOL, STEP_BYTES, STEP_SAMPLES, SYMBOL_WINDOW
from voicechat.models.embedded.voicebox import load_voicebox

_STEP = np.dtype([("code", "<u2"), ("symbols", "u1", (SYMBOL_WINDOW,))])
_PHASE = struct.Struct("<d")
_SILENCE = bytes(2) + bytes((NONE_SYMBOL,)) * SYMBOL_WINDOW
assert _STEP.itemsize == STEP_BYTES


def pack_steps(codes: Sequence[int], symbols: bytes) -> bytes:
    """Codes and, 9 bytes each, the windows of symbols at their steps, as steps. Raises ValueError for wrong lengths."""
    steps = np.empty(len(codes), _STEP)
    steps["code"] = codes
    steps["symbols"] = np.frombuffer(symbols, np.uint8).reshape(len(codes), SYMBOL_WINDOW)
    return steps.tobytes()


def unpack_steps(steps: bytes) -> tuple[list[int], bytes]:
    """What :func:`pack_steps` was given."""
    found = np.frombuffer(steps, _STEP)
    return found["code"].tolist(), found["symbols"].tobytes()


class VoiceBoxNetBatch:
    """See :class:`voicechat.models.batches.Net`: the net's ``stream``."""

    def __init__(self, net: Any) -> None:
        self._net = net

    def pack(self, batch: Sequence[Decode]) -> tuple[Tensor, ...]:
        """Codes ``[batch, steps]``, symbols ``[batch, steps, 9]``, then ``[batch]`` each: voices; the step of the reply
        that the chunk's first code is; the steps before the part that is emitted, and the step at which that ends; the
        phase of the pulse train where it begins, in cycles. All long, but for the float64 phase."""
        steps = np.frombuffer(b"".join(chunk.steps for chunk in batch), _STEP).reshape(len(batch), -1)
        return (
            torch.from_numpy(steps["code"].astype(np.int64)),
            torch.from_numpy(steps["symbols"].astype(np.int64)),
            torch.tensor([chunk.voice for chunk in batch]),
            torch.tensor([chunk.start // STEP_SAMPLES - chunk.left for chunk in batch]),
            torch.tensor([chunk.left for chunk in batch]),
            torch.tensor([chunk.left + chunk.emit for chunk in batch]),
            torch.tensor([_phase(chunk.state) for chunk in batch], dtype=torch.float64),
        )

    def run(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Sound, and the phase at the end of the part that is emitted."""
        sound, phase = self._net.stream(*inputs)
        return (sound * 32767.0).round().to(torch.int16), phase

    def silence(self, steps: int) -> Decode:
        """See :class:`voicechat.models.batches.Net`."""
        return Decode(0, 0, _SILENCE * steps, 0, steps, 0)


class EmbeddedDecoder:
    """See :class:`voicechat.contract.family.Decoder`."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def shape(self, chunk: Decode) -> Hashable:
        """Chunks of one length go together."""
        return len(chunk.steps)

    def decode(self, batch: Sequence[Decode]) -> list[Decoded]:
        """See :class:`voicechat.contract.family.Decoder`."""
        sounds, phases = self._batches.run(batch)
        return [
            Decoded(
                sound[chunk.left * STEP_SAMPLES : (chunk.left + chunk.emit) * STEP_SAMPLES], _PHASE.pack(float(phase))
            )
            for chunk, sound, phase in zip(batch, sounds, phases, strict=True)
        ]


def _phase(state: bytes) -> float:
    return float(_PHASE.unpack(state)[0]) if state else 0.0


def make_decoder(weights_dir: str, place: DecoderPlace) -> EmbeddedDecoder:
    """Load the VoiceBox and warm every length up."""
    torch.set_num_threads(place.threads)
    net = load_voicebox(weights_dir).to(place.device)
    return EmbeddedDecoder(make_batches(VoiceBoxNetBatch(net), place))
