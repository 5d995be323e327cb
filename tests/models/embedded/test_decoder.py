"""Chunks of several replies in one batch are decoded as if each were alone, wherever its own part begins and ends."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from tests.stages.streaming import symbols_of, tensors
from voicechat.contract.family import DecoderPlace
from voicechat.contract.messages import Decode
from voicechat.models.batches import PlainBatches
from voicechat.models.embedded.alphabet import STEP_BYTES
from voicechat.models.embedded.decoder import EmbeddedDecoder, VoiceBoxNetBatch, pack_steps, unpack_steps
from voicechat.models.embedded.voicebox import CODES, RIGHT_CONTEXT, TOKEN_SAMPLES, VoiceBoxNet, left_context
from voicechat.models.embedded.weights import VoiceBoxConfig

SMALL = VoiceBoxConfig(width=16, token_blocks=2, frame_blocks=1, voices=2)
LEFT = left_context(SMALL)
CLOSE = 8
"""Of 32767: float32 summed in another order."""


@pytest.fixture(scope="module")
def net() -> VoiceBoxNet:
    torch.manual_seed(0)
    net = VoiceBoxNet(SMALL).eval()
    torch.nn.init.normal_(net.pitch.weight, std=0.05)
    torch.nn.init.zeros_(net.head.bias)  # untrained nets are quiet
    return net


def codes_of(seed: int, steps: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, CODES, steps).tolist())


def plain(net: VoiceBoxNet) -> EmbeddedDecoder:
    """The net on the CPU, with nothing warmed up."""
    place = DecoderPlace(device=torch.device("cpu"), graphs=False, threads=1, max_batch=1, lengths=())
    return EmbeddedDecoder(PlainBatches(VoiceBoxNetBatch(net), place))


def state(phase: float) -> bytes:
    return struct.pack("<d", phase)


def phase(state: bytes) -> float:
    return float(struct.unpack("<d", state)[0])


def test_steps_are_codes_and_symbols() -> None:
    steps = pack_steps((5, 4374), bytes(range(18)))
    assert steps == b"\x05\x00" + bytes(range(9)) + b"\x16\x11" + bytes(range(9, 18))
    assert len(steps) == 2 * STEP_BYTES
    assert unpack_steps(steps) == ([5, 4374], bytes(range(18)))


def test_what_the_net_is_told(net: VoiceBoxNet) -> None:
    batch = [
        Decode(1, 0, pack_steps((5, 6, 7, 8), bytes(range(36))), 0, 2, 0),
        Decode(2, 1, pack_steps((1, 2, 3, 4), bytes([178] * 36)), 2, 1, 7 * TOKEN_SAMPLES, voice=1, state=state(0.25)),
    ]
    codes, symbols, voices, first, left, end, phase = VoiceBoxNetBatch(net).pack(batch)
    assert codes.tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]
    assert symbols.shape == (2, 4, 9) and symbols[0, 1].tolist() == list(range(9, 18))
    assert (symbols[1] == 178).all()
    assert voices.tolist() == [0, 1]
    assert first.tolist() == [0, 5]
    assert left.tolist() == [0, 2]
    assert end.tolist() == [2, 3]
    assert phase.tolist() == [0.0, 0.25] and phase.dtype == torch.float64


@pytest.mark.parametrize("symbols", [b"", bytes(35), bytes(37), bytes(45)])
def test_codes_and_symbols_do_not_match(symbols: bytes) -> None:
    with pytest.raises(ValueError, match="reshape"):
        pack_steps((5, 6, 7, 8), symbols)


def test_bytes_that_are_no_steps(net: VoiceBoxNet) -> None:
    with pytest.raises(ValueError, match="multiple of element size"):
        plain(net).decode([Decode(1, 0, bytes(STEP_BYTES + 1), 0, 1, 0)])


def test_a_batch_of_different_chunks(net: VoiceBoxNet) -> None:
    """Sound and phases of each do not depend on the chunks beside it, but on its own place, voice and phase."""
    decoder, steps = plain(net), pack_steps(codes_of(1, 14), symbols_of(14))
    batch = [
        Decode(0, 0, steps, 0, 12, 0),
        Decode(1, 0, steps, 0, 12, 0, voice=1),
        Decode(2, 0, steps, 8, 4, 20 * TOKEN_SAMPLES, state=state(0.7)),
        Decode(3, 0, steps, 8, 4, 20 * TOKEN_SAMPLES, state=state(0.2)),
        Decode(4, 0, steps, 8, 6, 21 * TOKEN_SAMPLES, state=state(0.2)),
        Decode(5, 0, pack_steps(codes_of(1, 14), symbols_of(14, 1)), 0, 12, 0),
    ]
    made = decoder.decode(batch)
    for message, (sound, after) in zip(batch, made, strict=True):
        assert len(sound) == message.emit * TOKEN_SAMPLES and sound.dtype == np.int16
        ((alone, after_alone),) = decoder.decode([message])
        assert np.abs(alone.astype(int) - sound).max() <= CLOSE
        assert phase(after_alone) == pytest.approx(phase(after), abs=1e-5)
        assert 0 <= phase(after) < 1
    for one, other in ((0, 1), (0, 5), (2, 3)):
        assert np.abs(made[one].pcm.astype(int) - made[other].pcm).max() > 50 * CLOSE
    assert np.abs(made[3].pcm.astype(int) - made[4].pcm[: len(made[3].pcm)]).max() > CLOSE
    assert (phase(made[2].state) - phase(made[3].state)) % 1.0 == pytest.approx(0.5, abs=1e-5)


def test_two_replies_chunk_by_chunk_in_one_batch(net: VoiceBoxNet) -> None:
    """Each goes on from its own phase, and is what it is as a whole."""
    decoder, emit, steps = plain(net), 5, 45
    replies = [(codes_of(seed, steps), symbols_of(steps, seed)) for seed in (2, 3)]
    states, parts = [b"", b""], [[], []]  # type: tuple[list[bytes], list[list[Pcm]]]
    for begin in range(0, steps, emit):
        first, last = max(0, begin - LEFT), min(steps, begin + emit + RIGHT_CONTEXT)
        batch = [
            Decode(
                number, 0, pack_steps(codes[first:last], symbols[9 * first : 9 * last]),
                begin - first, emit, begin * TOKEN_SAMPLES, number, states[number],
            )
            for number, (codes, symbols) in enumerate(replies)
        ]  # fmt: skip
        for number, (sound, after) in enumerate(decoder.decode(batch)):
            parts[number].append(sound)
            states[number] = after
    for number, reply in enumerate(replies):
        whole = net.decode(*tensors(*reply), torch.tensor([number]))[0].numpy() * 32767
        assert np.abs(np.concatenate(parts[number]) - whole).max() <= CLOSE
