"""Token2Wav: a flow from noise to a spectrogram, block by block, and a vocoder from that to sound (24 kHz).

The nets are the published implementation's modules; how they are driven is ours. There each of the 36 evaluations of
the flow encodes the voice's reference anew and assembles the input of codes and voice again; here both are computed
once for a chunk. Voices of a batch may differ.

The flow (flow matching with guidance, solved by the 3/8 rule of Runge and Kutta) sees a block of codes, two before and
one behind it (Qwen2.5-Omni report, section 2.4), so that a reply can be made in windows of whole blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.qwen2_5_omni.shapes import SoundShape

POINTS, GUIDANCE, SWAY = 10, 0.5, -1.0
"""As the published model solves: points in time, weight of the guidance, bend of the times towards the noise."""
_FLOOR_DB, _REFERENCE_DB = -115.0, 20.0


@dataclass(frozen=True, slots=True)
class Voice:
    """What a voice is to the flow: its embedding [speakers], and its reference as encoded, and silence so [width]."""

    speaker: Tensor
    reference: Tensor
    nothing: Tensor


class Token2Wav(nn.Module):
    """Both nets. Parameters of :attr:`net` are named as in the model's ``token2wav.`` part."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
        from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

        made = Qwen2_5OmniToken2WavConfig(**config)
        made._attn_implementation = "sdpa"
        self.net = Qwen2_5OmniToken2WavModel(made).float()
        self.shape = SoundShape.of(made.to_dict())
        self.mels: int = made.dit_config.mel_dim
        times = torch.linspace(0, 1, POINTS)
        times = times + SWAY * (torch.cos(torch.pi / 2 * times) - 1 + times)
        self.register_buffer("times", times, persistent=False)

    def voice(self, speaker: Tensor, reference: Tensor) -> Voice:
        """A voice out of its embedding [1, speakers] and its reference's spectrogram [1, frames, mels]."""
        encode = self._dit.input_embed.spk_encoder
        return Voice(speaker[0], encode(reference)[0], encode(torch.zeros_like(reference))[0])

    @property
    def _dit(self) -> Any:
        return self.net.code2wav_dit_model

    # ---- the flow

    def conditions(self, codes: Tensor, voices: Sequence[Voice]) -> Tensor:
        """What stays the same in all evaluations: long [B, n] to [2 B, frames, width], with guidance and without."""
        dit = self._dit
        coded = torch.cat((dit.text_embed(codes), dit.text_embed(codes, drop_code=True)))
        speakers = torch.stack([voice.speaker for voice in voices])
        speakers = torch.cat((speakers, torch.zeros_like(speakers)))
        heard = torch.stack([*(voice.reference for voice in voices), *(voice.nothing for voice in voices)])
        frames = coded.shape[1]
        whole = torch.cat(
            (heard[:, None].expand(-1, frames, -1), coded, speakers[:, None].expand(-1, frames, -1)), dim=-1
        )
        project = dit.input_embed.proj
        return F.linear(whole, project.weight[:, self.mels :], project.bias)

    def advance(self, state: Tensor, conditions: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """A step of the solver, from time ``start`` to ``end`` (scalars): [B, frames, mels] to the same."""
        step = end - start
        first = self._slope(start, state, conditions)
        second = self._slope(start + step / 3, state + step * first / 3, conditions)
        third = self._slope(start + step * 2 / 3, state + step * (second - first / 3), conditions)
        fourth = self._slope(end, state + step * (first - second + third), conditions)
        return state + (first + 3 * (second + third) + fourth) * step / 8

    def _slope(self, time: Tensor, state: Tensor, conditions: Tensor) -> Tensor:
        dit = self._dit
        hidden = F.linear(state, dit.input_embed.proj.weight[:, : self.mels]).repeat(2, 1, 1) + conditions
        moment = dit.time_embed(time.repeat(len(hidden)))
        places = torch.arange(hidden.shape[1], device=hidden.device)[None].expand(len(hidden), -1)
        turned, apart = dit.rotary_embed(hidden, places), dit._create_block_diff(hidden)
        for block in dit.transformer_blocks:
            hidden = block(hidden, moment, position_embeddings=turned, block_diff=apart)
        guided, plain = dit.proj_out(dit.norm_out(hidden, moment)).chunk(2)
        return cast(Tensor, guided + (guided - plain) * GUIDANCE)

    def spectrogram(self, noise: Tensor, conditions: Tensor) -> Tensor:
        """The whole way: [B, frames, mels] to the same."""
        state = noise
        for start, end in zip(self.times[:-1], self.times[1:], strict=True):
            state = self.advance(state, conditions, start, end)
        return state

    # ---- the vocoder

    def sound(self, spectrogram: Tensor) -> Tensor:
        """[B, frames, mels] to float32 sound [B, frames * frame_samples] within -1 and 1."""
        net: Any = self.net.code2wav_bigvgan_model
        least = 10 ** (_FLOOR_DB / 20)
        level = 20 * torch.log10(spectrogram.transpose(1, 2).exp().clamp(min=least)) - _REFERENCE_DB
        hidden = net.conv_pre((2 * (level - _FLOOR_DB) / -_FLOOR_DB - 1).clamp(-1, 1))
        many = net.num_residual_blocks
        for index, (up,) in enumerate(net.ups):
            hidden = up(hidden)
            blocks = net.resblocks[index * many : (index + 1) * many]
            hidden = torch.stack([block(hidden) for block in blocks]).sum(0) / many
        return cast(Tensor, net.conv_post(net.activation_post(hidden))[:, 0].clamp(-1, 1))


def noise_table(frames: int, mels: int) -> Tensor:
    """Where the flow begins: the same for every reply, by frame, so that windows that overlap begin alike."""
    return torch.randn(frames, mels, generator=torch.Generator().manual_seed(0))
