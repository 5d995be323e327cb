"""Qwen3-Omni's VoiceBox against transformers' Code2Wav: whole, in chunks, and several streams at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from voicechat.models.qwen3_omni.code2wav import Code2Wav, Code2WavConfig

SHAPE = {
    "codebook_size": 32,
    "num_quantizers": 4,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "sliding_window": 5,
    "decoder_dim": 32,
    "upsample_rates": (4, 3, 2),
    "upsampling_ratios": (2, 2),
}
TOLERANCE = 2e-6
"""Of float32 sound: nets of the same sums in another order."""


@pytest.fixture(scope="module")
def nets() -> tuple[Qwen3OmniMoeCode2Wav, Code2Wav]:
    torch.manual_seed(1)
    reference = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**SHAPE)).eval()
    with torch.no_grad():  # at their first values layer scales and snakes hide most of the net
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = Code2Wav(Code2WavConfig.of(reference.config.to_dict())).eval()
    ours.load_state_dict(reference.state_dict())
    return reference, ours


def test_the_whole_equals_the_reference(nets: tuple[Qwen3OmniMoeCode2Wav, Code2Wav]) -> None:
    reference, ours = nets
    codes = torch.randint(SHAPE["codebook_size"], (2, 23, 4))
    with torch.inference_mode():
        expected = reference(codes.transpose(1, 2))[:, 0]
    made = ours.decode(codes)
    assert made.shape == expected.shape == (2, 23 * ours.config.upsample - ours.config.lag)
    assert expected.std() > 0.01  # nothing is proven on silence
    torch.testing.assert_close(made, expected, atol=TOLERANCE, rtol=0)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**31))
def test_a_stream_is_the_whole(nets: tuple[Qwen3OmniMoeCode2Wav, Code2Wav], lengths: list[int], seed: int) -> None:
    _, ours = nets
    codes = torch.randint(SHAPE["codebook_size"], (1, sum(lengths), 4), generator=torch.Generator().manual_seed(seed))
    memory, line = ours.memory(3), torch.tensor([1])
    memory.parts[0].fill_(7.0)  # another's
    memory.forget(line)
    parts, at = [], 0
    for index, length in enumerate(lengths):
        parts.append(ours.stream(codes[:, at : at + length], memory, line, fresh=index == 0))
        at += length
    made = torch.cat(parts, 1)[:, ours.config.lag :]
    torch.testing.assert_close(made, ours.decode(codes), atol=TOLERANCE, rtol=0)


def test_streams_that_begin_at_different_times_share_batches(nets: tuple[Qwen3OmniMoeCode2Wav, Code2Wav]) -> None:
    _, ours = nets
    codes = torch.randint(SHAPE["codebook_size"], (3, 12, 4))
    memory, lag, size = ours.memory(4), ours.config.lag, ours.config.upsample
    heard: list[list[torch.Tensor]] = [[], [], []]
    for step in range(8):  # stream s begins at step s and has four chunks of three frames
        here = [stream for stream in range(3) if 0 <= step - stream < 4]
        if not here:
            continue
        lines = torch.tensor([3 - stream for stream in here])
        if step < 3:
            memory.forget(lines[-1:])
        batch = torch.stack([codes[stream, 3 * (step - stream) : 3 * (step - stream) + 3] for stream in here])
        for stream, sound in zip(here, ours.stream(batch, memory, lines, fresh=step < 3), strict=True):
            heard[stream].append(sound)
    made = torch.stack([torch.cat(parts)[lag:] for parts in heard])
    assert made.shape == (3, 12 * size - lag)
    torch.testing.assert_close(made, ours.decode(codes), atol=TOLERANCE, rtol=0)


def test_the_published_shape() -> None:
    config = Code2WavConfig.of(Qwen3OmniMoeCode2WavConfig().to_dict())
    assert (config.upsample, config.lag) == (1920, 555)
    with torch.device("meta"):
        ours = Code2Wav(config)
        reference = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig())
    theirs = {name: parameter.shape for name, parameter in reference.named_parameters()}
    assert {name: parameter.shape for name, parameter in ours.named_parameters()} == theirs


def test_a_net_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden_act 'gelu'"):
        Code2WavConfig.of({"hidden_act": "gelu"})
