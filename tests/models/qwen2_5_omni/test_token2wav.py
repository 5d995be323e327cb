"""Qwen2.5-Omni's VoiceBox against transformers' Token2Wav: whole, in windows, and several replies at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.models.tiny_qwen import TOKEN2WAV, nudge
from voicechat.contract.family import DecoderPlace
from voicechat.contract.messages import Decode
from voicechat.models.qwen2_5_omni.decoder import Qwen25Decoder
from voicechat.models.qwen2_5_omni.token2wav import Token2Wav, noise_table

STEP, BLOCK, FADE = 480, 3, 240
"""Samples of a step, steps of a block, samples of a fade."""
ALMOST = 2.0
"""Of int16: nets of the same sums in another order, and rounding."""


class Nets:
    """Both nets with the same weights, and two voices."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.ours = Token2Wav(TOKEN2WAV).eval()
        self.theirs = self.ours.net
        nudge(self.theirs, 2)
        self.given = [(torch.randn(1, 8), torch.randn(1, 30 + 10 * voice, 8)) for voice in range(2)]
        with torch.inference_mode():
            self.voices = [self.ours.voice(*given) for given in self.given]

    def decoder(self, max_batch: int = 4) -> Qwen25Decoder:
        place = DecoderPlace(
            device=torch.device("cpu"), graphs=False, threads=1, max_batch=max_batch, lengths=[24], slots=4
        )
        return Qwen25Decoder(self.ours, self.voices, place)

    def flow(self, codes: np.ndarray[Any, Any], voice: int, first: int = 0) -> torch.Tensor:
        """Their spectrogram [1, mels, frames] of a window that begins at step ``first``, from our noise."""
        noise = noise_table(1 << 13, 8)[2 * first :][: 2 * len(codes)][None]
        drawn = torch.randn
        torch.randn = lambda *_, **__: noise.clone()  # type: ignore[assignment]
        try:
            speaker, reference = self.given[voice]
            given = torch.from_numpy(codes.astype(np.int64))[None]
            made: torch.Tensor = self.theirs.code2wav_dit_model.sample(speaker, reference, given)
            return made
        finally:
            torch.randn = drawn

    def sound(self, frames: torch.Tensor) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            made: np.ndarray[Any, Any] = self.theirs.code2wav_bigvgan_model(frames).numpy() * 32767
        return made


@pytest.fixture(scope="module")
def nets() -> Nets:
    return Nets()


def codes_of(count: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 60, count).astype(np.uint16)


def chunk(codes: np.ndarray[Any, Any], begin: int, end: int, *, left: int, voice: int = 0, slot: int = 0) -> Decode:
    """Steps ``begin`` to ``end`` with ``left`` before them and a block behind, as the cascade sends them."""
    first = max(0, begin - left)
    steps = codes[first : end + BLOCK].tobytes()
    state = b"+" if begin else b""
    return Decode(slot, slot, steps, begin - first, end - begin, begin * STEP, voice, state)


def test_a_whole_reply_is_the_references(nets: Nets) -> None:
    codes = codes_of(17, 3)
    for voice in range(2):
        (made,) = nets.decoder().decode([chunk(codes, 0, 17, left=0, voice=voice)])
        expected = nets.sound(nets.flow(codes, voice))
        assert len(made.pcm) == len(expected) == 17 * STEP and expected.std() > 100
        assert np.abs(made.pcm - expected).max() <= ALMOST


def test_a_stream_is_made_of_the_references_windows(nets: Nets) -> None:
    """Each window is the reference's; the vocoder reads frames as they were heard; no sample too many or too few."""
    codes, decoder = codes_of(20, 4), nets.decoder()
    cuts, left = [0, 3, 9, 15, 20], 2 * BLOCK
    heard: list[np.ndarray[Any, Any]] = []
    expected: list[np.ndarray[Any, Any]] = []
    frames, tail = torch.zeros(1, 8, 0), None
    for begin, end in zip(cuts, cuts[1:], strict=False):
        given = chunk(codes, begin, end, left=left)
        heard.append(decoder.decode([given])[0].pcm)
        window = nets.flow(codes[begin - given.left : end + BLOCK], 0, begin - given.left)
        window[..., : 2 * given.left] = frames[..., frames.shape[-1] - 2 * given.left :]
        sound = nets.sound(window)[given.left * STEP :]
        emitted = sound[: (end - begin) * STEP].copy()
        if tail is not None:
            rise = (np.arange(FADE) + 0.5) / FADE
            emitted[:FADE] = tail * (1 - rise) + emitted[:FADE] * rise
        expected.append(emitted)
        tail = sound[(end - begin) * STEP :][:FADE]
        frames = torch.cat((frames, window[..., 2 * given.left :][..., : 2 * (end - begin)]), -1)
    made = np.concatenate(heard)
    assert len(made) == 20 * STEP
    assert np.abs(made - np.concatenate(expected)).max() <= ALMOST


def test_replies_of_other_voices_share_batches(nets: Nets) -> None:
    """Three replies that begin at different times: each as if it were alone."""
    codes = [codes_of(15, 5 + reply) for reply in range(3)]
    cuts = [0, 3, 6, 9, 12, 15]

    def parts(reply: int) -> list[Decode]:
        pairs = zip(cuts, cuts[1:], strict=False)
        return [chunk(codes[reply], b, e, left=2 * BLOCK, voice=reply % 2, slot=reply + 1) for b, e in pairs]

    alone = []
    for reply in range(3):
        decoder = nets.decoder()
        alone.append(np.concatenate([decoder.decode([part])[0].pcm for part in parts(reply)]))
    decoder, together = nets.decoder(), [[], [], []]  # type: ignore[var-annotated]
    for step in range(7):
        here = [reply for reply in range(3) if 0 <= step - reply < 5]
        shapes: dict[Any, list[int]] = {}
        for reply in here:
            shapes.setdefault(decoder.shape(parts(reply)[step - reply]), []).append(reply)
        for replies in shapes.values():
            made = decoder.decode([parts(reply)[step - reply] for reply in replies])
            for reply, decoded in zip(replies, made, strict=True):
                together[reply].append(decoded.pcm)
    for reply in range(3):
        assert np.abs(np.concatenate(together[reply]).astype(int) - alone[reply]).max() <= ALMOST


def test_windows_are_of_whole_blocks(nets: Nets) -> None:
    """A last chunk that reaches further back begins at a block all the same."""
    decoder, codes = nets.decoder(), codes_of(20, 9)
    assert decoder.shape(chunk(codes, 9, 15, left=8)) == decoder.shape(chunk(codes, 9, 15, left=6)) == 6 + 6 + 3
    assert decoder.shape(chunk(codes, 9, 15, left=0)) == 6 + 3
    with pytest.raises(ValueError, match="no code 64 among 64"):
        decoder.decode([chunk(np.array([64], np.uint16), 0, 1, left=0)])


def test_the_vocoder_needs_no_more_than_two_blocks_of_the_published_size() -> None:
    """Its reach to either side, by its published kernels: what lies further off changes no sample."""
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig

    config = Qwen2_5OmniToken2WavConfig().to_dict()
    config["dit_config"] |= {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    config["bigvgan_config"] |= {"upsample_initial_channel": 128}
    net = Token2Wav(config).eval()
    assert (net.shape.block, net.shape.step_samples) == (12, 480)
    torch.manual_seed(1)
    nudge(net.net.code2wav_bigvgan_model, 1)
    frames = torch.randn(1, 150, 80) - 3
    other = frames.clone()
    other[:, :48] = torch.randn(1, 48, 80) - 3
    with torch.inference_mode():
        differing = (net.sound(frames) - net.sound(other))[0].abs() > 1e-6
    assert differing.any() and int(differing.nonzero().max()) < (48 + 48) * 240
