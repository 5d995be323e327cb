"""Chunks of several replies in one batch are decoded as if each were alone, wherever its own part begins and ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.stages.streaming import symbols_of, tensors
from voicechat.contract.messages import Decode
from voicechat.models.embedded.voicebox import CODES, RIGHT_CONTEXT, TOKEN_SAMPLES, VoiceBoxNet, left_context
from voicechat.models.embedded.weights import VoiceBoxConfig
from voicechat.stages.decoder import Chunks, Pcm, PlainDecoder

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


def part(message: Decode, sound: Pcm) -> Pcm:
    """The part that a chunk emits."""
    return sound[message.left * TOKEN_SAMPLES : (message.left + message.emit) * TOKEN_SAMPLES]


def test_what_the_net_is_told() -> None:
    batch = [
        Decode(1, 0, (5, 6, 7, 8), bytes(range(36)), 0, 2, 0),
        Decode(2, 1, (1, 2, 3, 4), bytes([178] * 36), 2, 1, 7 * TOKEN_SAMPLES, voice=1, phase=0.25),
    ]
    codes, symbols, voices, first, left, end, phase = Chunks.of(batch)
    assert codes.tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]
    assert symbols.shape == (2, 4, 9) and symbols[0, 1].tolist() == list(range(9, 18))
    assert (symbols[1] == 178).all()
    assert voices.tolist() == [0, 1]
    assert first.tolist() == [0, 5]
    assert left.tolist() == [0, 2]
    assert end.tolist() == [2, 3]
    assert phase.tolist() == [0.0, 0.25] and phase.dtype == torch.float64


@pytest.mark.parametrize("symbols", [b"", bytes(35), bytes(37), bytes(45)])
def test_codes_and_symbols_do_not_match(net: VoiceBoxNet, symbols: bytes) -> None:
    with pytest.raises(ValueError, match="reshape"):
        PlainDecoder(net).decode([Decode(1, 0, (5, 6, 7, 8), symbols, 0, 2, 0)])


def test_a_batch_of_different_chunks(net: VoiceBoxNet) -> None:
    """Sound and phases of each do not depend on the chunks beside it, but on its own place, voice and phase."""
    decoder, codes, symbols = PlainDecoder(net), codes_of(1, 14), symbols_of(14)
    batch = [
        Decode(0, 0, codes, symbols, 0, 12, 0),
        Decode(1, 0, codes, symbols, 0, 12, 0, voice=1),
        Decode(2, 0, codes, symbols, 8, 4, 20 * TOKEN_SAMPLES, phase=0.7),
        Decode(3, 0, codes, symbols, 8, 4, 20 * TOKEN_SAMPLES, phase=0.2),
        Decode(4, 0, codes, symbols, 8, 6, 21 * TOKEN_SAMPLES, phase=0.2),
        Decode(5, 0, codes, symbols_of(14, 1), 0, 12, 0),
    ]
    sounds, phases = decoder.decode(batch)
    assert sounds.shape == (6, 14 * TOKEN_SAMPLES) and sounds.dtype == np.int16
    for message, sound, phase in zip(batch, sounds, phases, strict=True):
        alone, (after,) = decoder.decode([message])
        assert np.abs(alone[0].astype(int) - sound).max() <= CLOSE
        assert after == pytest.approx(phase, abs=1e-5)
        assert 0 <= phase < 1
    for other in range(1, 6):
        assert np.abs(sounds[0].astype(int) - sounds[other]).max() > 50 * CLOSE
    assert (phases[2] - phases[3]) % 1.0 == pytest.approx(0.5, abs=1e-5)


def test_two_replies_chunk_by_chunk_in_one_batch(net: VoiceBoxNet) -> None:
    """Each goes on from its own phase, and is what it is as a whole."""
    decoder, emit, steps = PlainDecoder(net), 5, 45
    replies = [(codes_of(seed, steps), symbols_of(steps, seed)) for seed in (2, 3)]
    phases, parts = [0.0, 0.0], [[], []]  # type: tuple[list[float], list[list[Pcm]]]
    for begin in range(0, steps, emit):
        first, last = max(0, begin - LEFT), min(steps, begin + emit + RIGHT_CONTEXT)
        batch = [
            Decode(
                number, 0, codes[first:last], symbols[9 * first : 9 * last],
                begin - first, emit, begin * TOKEN_SAMPLES, number, phases[number],
            )
            for number, (codes, symbols) in enumerate(replies)
        ]  # fmt: skip
        sounds, phases = decoder.decode(batch)
        for number in range(2):
            parts[number].append(part(batch[number], sounds[number]))
    for number, reply in enumerate(replies):
        whole = net.decode(*tensors(*reply), torch.tensor([number]))[0].numpy() * 32767
        assert np.abs(np.concatenate(parts[number]) - whole).max() <= CLOSE
