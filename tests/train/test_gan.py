"""How hard the discriminators pull, and the losses that the decoder is held to."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from voicechat.models.embedded.voicebox import VoiceBoxNet
from voicechat.models.embedded.weights import VoiceBoxConfig
from voicechat.train.codec import (
    Discriminators,
    Listener,
    MelLoss,
    ValleyLoss,
    feature_loss,
    fool_loss,
    hearing_loss,
)
from voicechat.train.gan import (
    Critics,
    Made,
    Pull,
    VoiceMeans,
    Window,
    empty_window,
    gan_step,
    make,
    pitch_loss,
    wave_loss,
)

CPU = torch.device("cpu")
BATCH, TOKENS = 3, 10
FRAMES = 4 * TOKENS
SIZE = torch.hann_window(960)


def test_the_pull_waits_for_a_mel_loss_to_go_by() -> None:
    pull = Pull(2, CPU)
    first = pull.weights.tolist()
    pull.steer([0.1, math.nan], 1.2)
    assert pull.weights.tolist() == first
    pull.settle([0.3, math.nan])
    pull.steer([0.3, 0.4], 1.2)
    assert pull.weights[0] > first[0], "the mel loss may still rise"
    assert pull.weights[1] == first[1], "it is this voice's first mel loss"
    for _ in range(100):
        pull.steer([0.5, 0.4], 1.2)
    assert 0 < pull.weights[0] < first[0] < pull.weights[1], "each voice has its own"
    before = pull.weights.tolist()
    pull.steer([math.nan, math.nan], 1.2)
    assert pull.weights.tolist() == before


_MELS = st.floats(0, 10) | st.just(math.nan)


@given(st.lists(st.tuples(_MELS, _MELS), max_size=50), st.floats(0.01, 1), st.floats(1, 2))
def test_the_pull_stays_within_bounds_and_survives_a_checkpoint(
    mels: list[tuple[float, float]], before: float, slack: float
) -> None:
    pull = Pull(2, CPU)
    weights = pull.weights
    pull.settle([before, 2 * before])
    for both in mels:
        pull.steer(both, slack)
        assert ((pull.weights > 0.01) & (pull.weights <= 10)).all()
    assert pull.weights is weights, "a captured step reads this tensor"
    other = Pull(2, CPU)
    other.load_state_dict(pull.state_dict())
    assert other.state_dict() == pull.state_dict() and torch.equal(other.weights, weights)


def test_means_by_voice() -> None:
    means = VoiceMeans(3, CPU)
    means.add(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 2, 2]))
    means.add(torch.tensor([4.0]), torch.tensor([2]))
    heart, joe, alto = means.take()
    assert (heart, alto) == (1.0, 4.0) and math.isnan(joe)
    assert all(math.isnan(mean) for mean in means.take())


def test_losses_are_of_each_sequence() -> None:
    torch.manual_seed(0)
    critics = Discriminators()
    real, made = torch.randn(2, 2, 960 * 6)
    made[1] = real[1]
    with torch.no_grad():
        verdicts = critics(real), critics(made)
        alone = critics(made[:1])
    mels, features, fooled = MelLoss()(made, real), feature_loss(*verdicts), fool_loss(verdicts[1])
    assert mels.shape == features.shape == fooled.shape == (2,)
    assert mels[0] > 0.1 and features[0] > 0.1
    assert mels[1].item() == features[1].item() == 0
    assert fooled[0].item() == pytest.approx(fool_loss(alone)[0].item(), rel=1e-4)


def test_the_discriminators_pull_a_voice_by_its_own_weight() -> None:
    """What reaches a sequence's sound from them goes by the weight of its voice."""
    torch.manual_seed(0)
    window = spoken()
    window.voices.copy_(torch.tensor([0, 1, 0])[:, None].expand(-1, TOKENS))
    critics = Critics(MelLoss(), ValleyLoss(), Listener(16, 1).eval(), Discriminators(), SIZE)
    window.voiced.fill_(False)
    decoder = VoiceBoxNet(VoiceBoxConfig(width=8, token_blocks=1, frame_blocks=1, expansion=1, voices=2))
    with torch.no_grad():
        decoder.head.bias += 4.0  # an untrained decoder is nearly silent

    def moved(weights: list[float]) -> tuple[list[float], list[float]]:
        """Lengths of the gradients of the two voices' embeddings; what a step measures of the sequences."""
        own = copy.deepcopy(decoder)
        optimizers = torch.optim.SGD(own.parameters(), 0.0), torch.optim.SGD(critics.judges.parameters(), 0.0)
        pull, judged = torch.tensor(weights), slice(960, 960 * 6)
        step = gan_step(window, judged, critics, own, optimizers, pull, lambda: torch.autocast("cpu", enabled=False))
        torch.manual_seed(1)
        measures = step()
        assert own.voice is not None and own.voice.weight.grad is not None
        return own.voice.weight.grad.norm(dim=1).tolist(), measures[7:].tolist()

    (small, other), mels = moved([0.0, 0.3])
    (large, same), _ = moved([100.0, 0.3])
    assert len(mels) == BATCH and min(mels) > 0
    assert large / same > 2 * small / other, "all gradients together are cut to one length"


def test_worse_sound_is_worse_heard() -> None:
    torch.manual_seed(0)
    listener = Listener(width=16, blocks=1).eval()
    sound = 0.1 * torch.randn(2, 960 * 6)
    real = listener(sound)
    assert real[0].shape == (2, 6, 2, 178)
    labels = real[0].argmax(-1)
    same, worse = (hearing_loss(listener(made), real, labels) for made in (sound, torch.zeros_like(sound)))
    assert same < worse


def spoken() -> Window:
    """A window of noise like speech in level, of which all is voiced, at 200 Hz."""
    window = empty_window(BATCH, TOKENS, CPU)
    window.sound.copy_(0.1 * torch.randn(window.sound.shape, generator=torch.Generator().manual_seed(0)))
    window.pitch.fill_(200.0)
    window.voiced.fill_(True)
    return window


def wave(window: Window, sound: torch.Tensor) -> float:
    return wave_loss(Made(sound, window.pitch), window, SIZE).item()


def test_the_wave_loss_goes_by_the_wave_and_its_sign() -> None:
    window = spoken()
    assert wave(window, window.sound) == 0
    assert wave(window, -window.sound) == pytest.approx(2.0, abs=1e-3)
    assert wave(window, torch.zeros_like(window.sound)) == pytest.approx(1.0, abs=1e-3)
    assert wave(window, 1.1 * window.sound) == pytest.approx(0.1, abs=1e-3)
    at = torch.arange(window.sound.shape[1]) / 24_000
    for frequency, counts in ((400.0, True), (1900.0, True), (2100.0, False), (5000.0, False)):
        heard = wave(window, window.sound + 0.1 * torch.cos(2 * torch.pi * frequency * at))
        assert (heard > 0.1) == counts, (frequency, heard)


def test_unvoiced_frames_have_no_wave_loss() -> None:
    window = spoken()
    window.voiced[:, 10:30] = False
    other = window.sound.clone()
    other[:, 12 * 240 : 28 * 240] *= -1  # a frame's window reaches 1.5 frames to each side
    assert wave(window, other) == pytest.approx(0.0, abs=1e-6)
    other[:, 11 * 240 : 12 * 240] *= -1
    assert wave(window, other) > 1e-3
    window.voiced.fill_(False)
    assert wave(window, -window.sound) == 0


def test_louder_frames_count_more_by_the_root_of_their_level() -> None:
    window = spoken()
    window.sound[:, 20 * 240 :] *= 100
    first, second = (slice(0, 18 * 240), slice(22 * 240, None))
    losses = []
    for part in (first, second):
        other = window.sound.clone()
        other[:, part] *= -1
        losses.append(wave(window, other))
    quiet, loud = losses
    assert 3 < loud / quiet < 15


def test_the_wave_loss_can_be_followed_from_the_very_sound() -> None:
    window = spoken()
    made = window.sound.clone().requires_grad_(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = wave_loss(Made(made, window.pitch), window, SIZE)
    loss.backward()
    assert loss.dtype == torch.float32
    assert made.grad is not None and made.grad.isfinite().all()


def test_the_pitch_loss_is_that_of_voiced_frames_in_logarithms() -> None:
    window = spoken()
    count = BATCH * FRAMES

    def loss(pitch: torch.Tensor) -> float:
        return pitch_loss(Made(window.sound, pitch), window).item()

    assert loss(window.pitch) == 0
    octave = torch.log(torch.tensor(2.0)).item()
    for factor in (2.0, 0.5):
        assert loss(factor * window.pitch) == pytest.approx(octave * count / (count + 1), rel=1e-4)
    window.voiced[:, ::2] = False
    window.pitch[:, ::2] = 0.0
    other = torch.full_like(window.pitch, 200.0)
    assert loss(other) == 0
    other[:, ::2] = 400.0
    assert loss(other) == 0
    other[0, 1] = 400.0
    assert loss(other) == pytest.approx(octave / (count / 2 + 1), rel=1e-4)
    window.voiced.fill_(False)
    assert loss(2 * other) == 0


def test_an_empty_window_has_room_for_all_that_a_step_reads() -> None:
    window = empty_window(BATCH, TOKENS, CPU)
    shapes = {one.name: tuple(getattr(window, one.name).shape) for one in fields(window)}
    frames, tokens = (BATCH, FRAMES), (BATCH, TOKENS)
    assert shapes == {
        "sound": (BATCH, TOKENS * 960), "codes": tokens, "voices": tokens, "symbols": (*tokens, 9),
        "labels": (*tokens, 2), "pitch": frames, "middles": frames, "voiced": frames,
    }  # fmt: skip
    kinds = {one.name: getattr(window, one.name).dtype for one in fields(window)}
    assert {name for name, kind in kinds.items() if kind == torch.float32} == {"sound", "pitch", "middles"}
    assert {name for name, kind in kinds.items() if kind == torch.bool} == {"voiced"}
    torch.manual_seed(0)
    made = make(window, VoiceBoxNet(VoiceBoxConfig(width=16, token_blocks=2, frame_blocks=1)))
    assert made.sound.shape == window.sound.shape and made.pitch.shape == window.pitch.shape
    assert made.sound.isfinite().all()


def test_some_sequences_of_a_window_are_the_same_tensors() -> None:
    window = spoken()
    part = window[1:]
    for one in fields(window):
        whole, own = getattr(window, one.name), getattr(part, one.name)
        assert torch.equal(own, whole[1:]) and own.data_ptr() == whole[1:].data_ptr()
    window.sound[2].fill_(0.5)
    assert part.sound[1].unique().tolist() == [0.5] and not (part.sound[0] == 0.5).any()
    assert len(window[:1].codes) == 1


def test_what_is_made_lies_on_the_windows_own_periods() -> None:
    """Half a period later than the window says, and the same decoder is as far off as it can be."""
    torch.manual_seed(0)
    decoder = VoiceBoxNet(VoiceBoxConfig(width=16, token_blocks=2, frame_blocks=1)).eval()
    with torch.no_grad():
        decoder.head.weight.zero_()
        decoder.head.bias[481:962] = 0.0  # no phase of its own
        decoder.head.bias[962:] = -20.0  # no noise
        window = spoken()
        window.middles.copy_((torch.arange(FRAMES) * 2.0 + 0.3) % 1.0)  # at 200 Hz two periods a frame
        window.sound.copy_(make(window, decoder).sound)
        assert wave(window, make(window, decoder).sound) < 1e-3
        moved = replace(window, middles=window.middles + 0.5)
        heard = wave(window, make(moved, decoder).sound)
        assert 0.7 < heard < 1.3, "of ten harmonics every other one is inverted"
