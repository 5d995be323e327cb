"""How hard the discriminators pull, and the listener that the decoder is held to."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from voicechat.train.codec import Listener, hearing_loss
from voicechat.train.gan import Pull

CPU = torch.device("cpu")


def test_the_pull_waits_for_a_mel_loss_to_go_by() -> None:
    pull = Pull(CPU)
    first = pull.weight.item()
    pull.steer(0.1, 1.2)
    assert pull.weight.item() == first
    pull.settle(0.3)
    pull.steer(0.3, 1.2)
    assert pull.weight.item() > first, "the mel loss may still rise"
    for _ in range(100):
        pull.steer(0.5, 1.2)
    assert 0 < pull.weight.item() < first


@given(st.lists(st.floats(0, 10), max_size=50), st.floats(0.01, 1), st.floats(1, 2))
def test_the_pull_stays_within_bounds_and_survives_a_checkpoint(mels: list[float], before: float, slack: float) -> None:
    pull = Pull(CPU)
    weight = pull.weight
    pull.settle(before)
    for mel in mels:
        pull.steer(mel, slack)
        assert 0.01 < pull.weight.item() <= 10
    assert pull.weight is weight, "a captured step reads this tensor"
    other = Pull(CPU)
    other.load_state_dict(pull.state_dict())
    assert other.state_dict() == pull.state_dict() and torch.equal(other.weight, weight)


def test_worse_sound_is_worse_heard() -> None:
    torch.manual_seed(0)
    listener = Listener(width=16, blocks=1).eval()
    sound = 0.1 * torch.randn(2, 960 * 6)
    real = listener(sound)
    assert real[0].shape == (2, 6, 2, 178)
    labels = real[0].argmax(-1)
    same, worse = (hearing_loss(listener(made), real, labels) for made in (sound, torch.zeros_like(sound)))
    assert same < worse
