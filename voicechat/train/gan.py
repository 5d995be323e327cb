"""The decoder against discriminators, codes fixed: what one step does, and how hard the discriminators may pull."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from voicechat.models.embedded.voicebox import VoiceBoxNet, as_complex
from voicechat.train.codec import (
    Discriminators,
    Listener,
    MelLoss,
    ValleyLoss,
    feature_loss,
    fool_loss,
    hearing_loss,
    judge_loss,
)

MEL_WEIGHT = 15.0
VALLEY_WEIGHT = 1.0
AGREEMENT_WEIGHT = 0.2
FEATURE_WEIGHT = 0.25
AGREEING_BINS = 100
"""Of 25 Hz each."""
_LEAST_PULL, _FIRST_PULL, _MOST_PULL = 0.02, 0.3, 10.0


class Pull:
    """Weight of the discriminators, steered so that the mel loss stays at ``slack`` times what it was before them.

    Sound that is drawn from all that a code may mean lies farther from the one true sound than the mean of it does, so
    the mel loss has to rise a little; where it rises much, the speech is no longer understood.
    """

    def __init__(self, device: torch.device) -> None:
        self.weight = torch.full((), _FIRST_PULL, device=device)
        self.before = math.nan
        self._value = _FIRST_PULL

    def settle(self, mel: float) -> None:
        """Take the mel loss of a decoder that the discriminators have not moved yet."""
        self.before = mel

    def steer(self, mel: float, slack: float) -> None:
        """Follow a new mean of the mel loss."""
        if math.isnan(self.before):
            return
        change = math.exp(max(-0.5, min(0.15, 1 - mel / (slack * self.before))))
        self._value = max(_LEAST_PULL, min(_MOST_PULL, self._value * change))
        self.weight.fill_(self._value)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"value": self._value, "before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._value, self.before = float(state_dict["value"]), float(state_dict["before"])
        self.weight.fill_(self._value)


@dataclass(frozen=True, slots=True)
class Window:
    """Fixed tensors that a step reads: sound [B, T * 960], its codes, voices [B, T] and labels [B, T, 2]."""

    sound: Tensor
    codes: Tensor
    voices: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Critics:
    """Those that judge what the decoder makes; only the discriminators learn."""

    mel: MelLoss
    valleys: ValleyLoss
    listener: Listener
    judges: Discriminators


@dataclass(frozen=True, slots=True)
class Made:
    """What the decoder made of a window: the sound [B, T * 960], and how little its frames agree."""

    sound: Tensor
    disagreement: Tensor


def make(window: Window, decoder: VoiceBoxNet) -> Made:
    """Decode a window's codes."""
    spectrum = decoder.spectrum(decoder.quantizer.values(window.codes), window.voices)
    with torch.autocast(spectrum.device.type, enabled=False):
        sound = decoder.overlap_add(spectrum)
        return Made(sound, disagreement(as_complex(spectrum), decoder.analyse(sound)))


def disagreement(given: Tensor, found: Tensor) -> Tensor:
    """Distance of the spectrum that a sound was made of [B, F, 481] from the one it has, as a share of its size.

    Where frames do not agree in phase they cancel, and voices turn hoarse. It is heard under 2 kHz, so it is looked at
    a little beyond.
    """
    given, found = given[..., :AGREEING_BINS], found[..., :AGREEING_BINS]
    return (given - found).abs().sum() / (given.abs().sum().detach() + 1e-3)


def decoder_loss(window: Window, critics: Critics, made: Made) -> tuple[Tensor, Tensor, Tensor]:
    """What the decoder is trained by without discriminators: the weighted sum, mel loss and hearing loss."""
    mel = critics.mel(made.sound, window.sound)
    valleys = critics.valleys(made.sound, window.sound)
    with torch.no_grad():
        real = critics.listener(window.sound)
    hearing = hearing_loss(critics.listener(made.sound), real, window.labels)
    loss = MEL_WEIGHT * mel + VALLEY_WEIGHT * valleys + AGREEMENT_WEIGHT * made.disagreement + hearing
    return loss, mel, hearing


def plain_step(
    window: Window,
    critics: Critics,
    decoder: VoiceBoxNet,
    optimizer: torch.optim.Optimizer,
    autocast: Callable[[], torch.autocast],
) -> Callable[[], Tensor]:
    """A step of the decoder alone."""

    def step() -> Tensor:
        with autocast():
            made = make(window, decoder)
            loss, mel, hearing = decoder_loss(window, critics, made)
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 5.0)
        optimizer.step()
        return torch.stack([part.detach() for part in (mel, hearing, made.disagreement)])

    return step


def gan_step(
    window: Window,
    judged: slice,
    critics: Critics,
    decoder: VoiceBoxNet,
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    pull: Tensor,
    autocast: Callable[[], torch.autocast],
) -> Callable[[], Tensor]:
    """A step of both sides. ``judged``: samples of the window that the discriminators see; ``optimizers``: the
    decoder's and theirs.

    All losses are simply summed. (Bringing the gradients with respect to the sound to fixed lengths gives the
    discriminators all of the loud places, because nearly all of the mel loss's gradient lies in the quiet ones.)
    """
    judges = critics.judges

    def step() -> Tensor:
        with autocast():
            made = make(window, decoder)
            judge = judge_loss(judges(window.sound[:, judged]), judges(made.sound[:, judged].detach()))
        judge.backward()
        optimizers[1].step()
        judges.requires_grad_(False)
        with autocast():
            verdicts = judges(made.sound[:, judged])
            with torch.no_grad():
                real_verdicts = judges(window.sound[:, judged])
            loss, mel, hearing = decoder_loss(window, critics, made)
        fool, feature = fool_loss(verdicts), feature_loss(real_verdicts, verdicts)
        (loss + pull * (fool + FEATURE_WEIGHT * feature)).backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 5.0)
        optimizers[0].step()
        judges.requires_grad_(True)
        return torch.stack([part.detach() for part in (mel, hearing, made.disagreement, fool, feature, judge)])

    return step
