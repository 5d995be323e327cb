"""VoiceBox: streamed equals whole with the full context; the quantiser's codes and values agree."""

from __future__ import annotations

import pytest
import torch

from voicechat.models.embedded.alphabet import NONE_SYMBOL, SYMBOL_WINDOW
from voicechat.models.embedded.voicebox import (
    CODES,
    RIGHT_CONTEXT,
    TOKEN_SAMPLES,
    FiniteScalarQuantizer,
    VoiceBoxNet,
    left_context,
)
from voicechat.models.embedded.weights import VoiceBoxConfig

SMALL = VoiceBoxConfig(width=32, expansion=2, token_blocks=2, frame_blocks=2)


@pytest.fixture(scope="module")
def voicebox() -> VoiceBoxNet:
    torch.manual_seed(0)
    net = VoiceBoxNet(SMALL).eval()
    torch.nn.init.normal_(net.head.weight, std=0.3)
    return net


def reply(count: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [count, steps] and windows of symbols [count, steps, 9] of no language."""
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, CODES, (count, steps), generator=generator)
    return codes, torch.randint(0, NONE_SYMBOL + 1, (count, steps, SYMBOL_WINDOW), generator=generator)


def test_length_and_range(voicebox: VoiceBoxNet) -> None:
    sound = voicebox.decode(*reply(3, 7))
    assert sound.shape == (3, 7 * TOKEN_SAMPLES) and sound.dtype == torch.float32
    assert sound.abs().max() <= 1.0 and sound.abs().max() > 0.0


@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_chunks_with_full_context_equal_the_whole(voicebox: VoiceBoxNet, chunk: int) -> None:
    codes, symbols = reply(1, 40)
    whole = voicebox.decode(codes, symbols)[0]
    left = left_context(SMALL)
    parts, phase = [], torch.zeros(1, dtype=torch.float64)
    for start in range(0, 40, chunk):
        end, first = min(40, start + chunk), max(0, start - left)
        inside = slice(first, end + RIGHT_CONTEXT)
        places = (torch.tensor([place]) for place in (0, first, start - first, end - first))
        sound, phase = voicebox.stream(codes[:, inside], symbols[:, inside], *places, phase)
        parts.append(sound[0, (start - first) * TOKEN_SAMPLES : (end - first) * TOKEN_SAMPLES])
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


def test_sequences_of_a_batch_do_not_touch(voicebox: VoiceBoxNet) -> None:
    codes, symbols = reply(4, 12)
    whole = voicebox.decode(codes, symbols)
    torch.testing.assert_close(whole[2:3], voicebox.decode(codes[2:3], symbols[2:3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", range(9))
def test_each_place_of_a_window_is_heard(voicebox: VoiceBoxNet, place: int) -> None:
    codes, symbols = reply(1, 20)
    other = symbols.clone()
    other[0, 15, place] = (other[0, 15, place] + 1) % (NONE_SYMBOL + 1)
    one, two = voicebox.decode(codes, symbols)[0], voicebox.decode(codes, other)[0]
    begins = (15 - RIGHT_CONTEXT) * TOKEN_SAMPLES
    torch.testing.assert_close(one[:begins], two[:begins], rtol=1e-4, atol=1e-4)
    assert (one - two).abs().max() > 1e-3


def test_quantizer_codes_and_values_agree() -> None:
    quantizer = FiniteScalarQuantizer()
    every = torch.arange(CODES)
    values = quantizer.values(every)
    assert values.abs().max() == 1.0
    again, codes = quantizer(torch.atanh(values * 0.95))
    assert torch.equal(codes, every)
    torch.testing.assert_close(again, values)
