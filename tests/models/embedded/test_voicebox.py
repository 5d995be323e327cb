"""VoiceBox: streamed equals whole with the full context; the quantiser's codes and values agree."""

from __future__ import annotations

import pytest
import torch

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


def test_length_and_range(voicebox: VoiceBoxNet) -> None:
    sound = voicebox.decode(torch.randint(0, CODES, (3, 7)))
    assert sound.shape == (3, 7 * TOKEN_SAMPLES) and sound.dtype == torch.float32
    assert sound.abs().max() <= 1.0 and sound.abs().max() > 0.0


@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_chunks_with_full_context_equal_the_whole(voicebox: VoiceBoxNet, chunk: int) -> None:
    codes = torch.randint(0, CODES, (1, 40), generator=torch.Generator().manual_seed(2))
    whole = voicebox.decode(codes)[0]
    left = left_context(SMALL)
    parts = []
    for start in range(0, 40, chunk):
        end, first = min(40, start + chunk), max(0, start - left)
        sound = voicebox.decode(codes[:, first : end + RIGHT_CONTEXT])[0]
        parts.append(sound[(start - first) * TOKEN_SAMPLES : (end - first) * TOKEN_SAMPLES])
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)


def test_sequences_of_a_batch_do_not_touch(voicebox: VoiceBoxNet) -> None:
    codes = torch.randint(0, CODES, (4, 12))
    torch.testing.assert_close(voicebox.decode(codes)[2:3], voicebox.decode(codes[2:3]), rtol=1e-4, atol=1e-5)


def test_quantizer_codes_and_values_agree() -> None:
    quantizer = FiniteScalarQuantizer()
    every = torch.arange(CODES)
    values = quantizer.values(every)
    assert values.abs().max() == 1.0
    again, codes = quantizer(torch.atanh(values * 0.95))
    assert torch.equal(codes, every)
    torch.testing.assert_close(again, values)
