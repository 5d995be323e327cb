"""The decoder against discriminators, codes fixed: what one step does, and how hard the discriminators may pull."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from voicechat.models.embedded.alphabet import SYMBOL_WINDOW
from voicechat.models.embedded.source import HOP, NOISE_FRAMES, frames_of
from voicechat.models.embedded.voicebox import FRAMES_PER_TOKEN, VoiceBoxNet
from voicechat.train.codec import (
    LABELS,
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
WAVE_WEIGHT = 1.0
PITCH_WEIGHT = 5.0
FEATURE_WEIGHT = 0.25
WAVE_BINS = 80
"""Of 25 Hz each: higher up the phase of the fundamental does not tell that of a harmonic."""
_QUIET = 0.05
_LEAST_PULL, _FIRST_PULL, _MOST_PULL = 0.02, 0.3, 10.0


class Pull:
    """Weights of the discriminators, each voice's own, steered so that its mel loss stays at ``slack`` times what it
    was before them.

    Sound that is drawn from all that a code may mean lies farther from the one true sound than the mean of it does, so
    the mel loss has to rise a little; where it rises much, the speech is no longer understood. Voices differ in this:
    by one weight for all, the loss of two rose by 6 % and that of the third by 21 %.
    """

    def __init__(self, voices: int, device: torch.device) -> None:
        self.weights = torch.full((voices,), _FIRST_PULL, device=device)
        self._values = [_FIRST_PULL] * voices
        self._before = [math.nan] * voices

    def settle(self, mels: Sequence[float]) -> None:
        """Take each voice's mel loss by a decoder that the discriminators have not moved yet."""
        self._before = list(mels)

    def steer(self, mels: Sequence[float], slack: float) -> None:
        """Follow new means of the voices' mel losses; NaN: nothing new of this voice."""
        for voice, (mel, before) in enumerate(zip(mels, self._before, strict=True)):
            if math.isnan(before):
                self._before[voice] = mel
            elif not math.isnan(mel):
                change = math.exp(max(-0.5, min(0.15, 1 - mel / (slack * before))))
                self._values[voice] = max(_LEAST_PULL, min(_MOST_PULL, self._values[voice] * change))
        self.weights.copy_(torch.tensor(self._values))

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"values": list(self._values), "before": list(self._before)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._values, self._before = list(state_dict["values"]), list(state_dict["before"])
        self.weights.copy_(torch.tensor(self._values))


class VoiceMeans:
    """Means by voice of what a step measures of each sequence; read seldom, for reading waits for the device."""

    def __init__(self, voices: int, device: torch.device) -> None:
        self._sums, self._counts = torch.zeros(2, voices, device=device)

    def add(self, values: Tensor, voices: Tensor) -> None:
        """Take in ``values`` [B] of sequences of these ``voices`` (long [B])."""
        self._sums.index_add_(0, voices, values)
        self._counts.index_add_(0, voices, torch.ones_like(values))

    def take(self) -> list[float]:
        """The means since they were last taken; NaN of a voice that did not come."""
        means: list[float] = (self._sums / self._counts).tolist()
        self._sums.zero_()
        self._counts.zero_()
        return means


@dataclass(frozen=True, slots=True)
class Window:
    """Fixed tensors that a step reads: sound [B, T * 960]; its codes, voices [B, T] and symbols [B, T, 9]; labels
    [B, T, 2]; and the sound's pitch: see :class:`~voicechat.train.pitch.Track`, [B, T * 4]."""

    sound: Tensor
    codes: Tensor
    voices: Tensor
    symbols: Tensor
    labels: Tensor
    pitch: Tensor
    middles: Tensor
    voiced: Tensor

    def __getitem__(self, index: slice) -> Window:
        """The same tensors, only some of their sequences."""
        return Window(*(getattr(self, one.name)[index] for one in fields(self)))

    @property
    def voice(self) -> Tensor:
        """The voice in the middle of each sequence, long [B]."""
        return self.voices[:, self.voices.shape[1] // 2]


def empty_window(batch: int, tokens: int, device: torch.device) -> Window:
    """Room for so many sequences of so many tokens."""

    def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(batch, *shape, dtype=dtype, device=device)

    frames = tokens * FRAMES_PER_TOKEN
    return Window(
        sound=zeros(frames * HOP, dtype=torch.float32), codes=zeros(tokens), voices=zeros(tokens),
        symbols=zeros(tokens, SYMBOL_WINDOW), labels=zeros(tokens, LABELS),
        pitch=zeros(frames, dtype=torch.float32), middles=zeros(frames, dtype=torch.float32),
        voiced=zeros(frames, dtype=torch.bool),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Critics:
    """Those that judge what the decoder makes; only the discriminators learn."""

    mel: MelLoss
    valleys: ValleyLoss
    listener: Listener
    judges: Discriminators
    window: Tensor
    """Of the frames whose phases are compared, [960]."""


@dataclass(frozen=True, slots=True)
class Made:
    """What the decoder made of a window: the sound [B, T * 960] on the window's own pitch, and the pitch [B, T * 4]
    that it would have taken."""

    sound: Tensor
    pitch: Tensor


def make(window: Window, decoder: VoiceBoxNet, values: Tensor | None = None) -> Made:
    """Decode a window's codes, or the ``values`` [B, T, 5] of an encoder in their place."""
    values = decoder.quantizer.values(window.codes) if values is None else values
    filters = decoder.filters(values, window.symbols, window.voices)
    first = torch.randint(0, NOISE_FRAMES, (len(values),), device=values.device)
    return Made(decoder.sound(filters, window.pitch, window.middles, first), filters.pitch)


def pitch_loss(made: Made, window: Window) -> Tensor:
    """Mean distance of the logarithms of the pitch, where the window is voiced."""
    distance = (torch.log(made.pitch) - torch.log(window.pitch.clamp(min=1.0))).abs()
    return (distance * window.voiced).sum() / (window.voiced.sum() + 1)


def wave_loss(made: Made, window: Window, size: Tensor) -> Tensor:
    """Distance of the complex spectra under 2 kHz as a share of their size, where the window is voiced.

    The pulse train has the phases of the window's own fundamental, so the waves can be compared. Louder frames count
    more, but only by the root. ``size``: the analysis window [960].
    """
    with torch.autocast(made.sound.device.type, enabled=False):
        given, wanted = (frames_of(x.float(), size, HOP)[..., :WAVE_BINS] for x in (made.sound, window.sound))
        strength = wanted.abs()
        weight = window.voiced[..., None] / torch.sqrt(strength + _QUIET)
        return (weight * (given - wanted).abs()).sum() / ((weight * strength).sum() + 1e-3)


def decoder_loss(window: Window, critics: Critics, made: Made) -> tuple[Tensor, Tensor, Tensor]:
    """What the decoder is trained by without discriminators: the weighted sum; the mel, hearing, wave and pitch losses
    of which it is the sum; and the mel loss of each sequence [B]."""
    mels = critics.mel(made.sound, window.sound)
    mel = mels.mean()
    valleys = critics.valleys(made.sound, window.sound)
    with torch.no_grad():
        real = critics.listener(window.sound)
    hearing = hearing_loss(critics.listener(made.sound), real, window.labels)
    wave = wave_loss(made, window, critics.window)
    pitch = pitch_loss(made, window)
    loss = MEL_WEIGHT * mel + VALLEY_WEIGHT * valleys + WAVE_WEIGHT * wave + PITCH_WEIGHT * pitch + hearing
    return loss, torch.stack((mel, hearing, wave, pitch)).detach(), mels.detach()


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
            loss, parts, _ = decoder_loss(window, critics, make(window, decoder))
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 5.0)
        optimizer.step()
        return parts

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
    """A step of both sides; it gives seven means and, after them, the mel loss of each sequence.

    ``judged``: samples of the window that the discriminators see; ``optimizers``: the decoder's and theirs; ``pull``
    [voices]: see :class:`Pull`.

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
            loss, parts, mels = decoder_loss(window, critics, made)
        fool, feature = fool_loss(verdicts), feature_loss(real_verdicts, verdicts)
        (loss + (pull[window.voice] * (fool + FEATURE_WEIGHT * feature)).mean()).backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 5.0)
        optimizers[0].step()
        judges.requires_grad_(True)
        return torch.cat((parts, torch.stack((fool.mean(), feature.mean(), judge)).detach(), mels))

    return step
