"""Steps ``voicebox`` and ``decoder``: codes of speech, and the decoder that makes speech of them.

``voicebox`` trains encoder and decoder together, by mel and phoneme losses, encodes all speech and then trains the
decoder against discriminators. ``decoder`` goes on from packaged weights whose encoder nobody has any more: a new
encoder learns to say in the old codes what it hears, the decoder standing still; then the decoder learns on by these
codes. The Talker that was trained on the old codes can stay as it is. With an encoder that was kept, only the decoder
learns.
"""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.embedded.voicebox import TOKEN_SAMPLES, VoiceBoxNet, load_voicebox
from voicechat.models.embedded.weights import VoiceBoxConfig, load_tensors, load_voice_config, save_tensors
from voicechat.train.arena import Arena
from voicechat.train.codec import Discriminators, Encoder, Listener, MelLoss, PhonemeHead, ValleyLoss
from voicechat.train.coded import CodedSpeech
from voicechat.train.common import (
    VOICES_FILE,
    Budget,
    Loop,
    Stateful,
    Work,
    follow,
    load_checkpoint,
    save_checkpoint,
    to_pcm,
    wait_for,
)
from voicechat.train.gan import (
    MEL_WEIGHT,
    PITCH_WEIGHT,
    WAVE_WEIGHT,
    Critics,
    Pull,
    VoiceMeans,
    gan_step,
    make,
    pitch_loss,
    plain_step,
    wave_loss,
)
from voicechat.train.graphed import GraphedStep, make_optimizer, set_rate
from voicechat.train.spectrum import lift_noise

logger = logging.getLogger("voicechat.train")

DECODER_FILE = "decoder.pt"
PLAIN_DECODER_FILE = "decoder-plain.pt"
"""The decoder as it was before the GAN."""
ENCODER_FILE = "encoder.safetensors"
"""Not needed in use, but to train a decoder on that a Talker has learned the codes of."""


_LOSSES = ("mel", "hearing", "wave", "pitch")


@dataclass(frozen=True, slots=True)
class VoiceBoxPlan:
    """Sizes and budgets of the step. ``window`` and ``judged`` are tokens of sound."""

    config: VoiceBoxConfig = field(default_factory=VoiceBoxConfig)
    encoder_width: int = 384
    encoder_blocks: int = 4
    hours: float = 240.0
    first_hours: float = 2.0
    held_out: int = 100
    batch: int = 64
    window: int = 30
    codec_steps: int = 20_000
    codec_seconds: float | None = None
    gan_batch: int = 32
    slack: tuple[float, float] = (1.02, 1.08)
    """How far each voice's mel loss may rise above what it was before the discriminators, at the GAN's start and end.

    Where it rose by 21 % (others: 6 %), a voice lost by the GAN what the others gained. At 1.25 a voice with 4 of 20
    hours was understood half as well as before (WER 9 -> 20 %), for no more DNSMOS.
    """
    smoothing: float = 0.999
    """The decoder that is kept is a running mean of the GAN's, with this memory per step."""
    share: float = 0.5
    """Of the GAN's weights in those that are kept; the others are those before the GAN.

    Mean of both, the voices that the GAN improves gain most of it, and those that it harms lose little.
    """
    lift: float = 2.0
    """Decibels by which the noise is raised in the end: the losses leave it a little too quiet."""
    judged: int = 16
    gan_steps: int = 60_000
    gan_seconds: float | None = None
    total_seconds: float | None = None
    """The GAN ends so long after the start of the step, whatever the other phases took."""
    judges_alone: int = 300
    """First steps of the GAN in which only the discriminators learn."""
    matched: int = 60
    """Training clips of each voice by which the decoder's mean spectrum is corrected in the end."""
    report: int = 500
    capture: bool = True
    gan_after: Path | None = None
    """The GAN waits for this file: leaves a shared GPU to the Talker first."""
    weights: Path | None = None
    """Packaged weights whose decoder is trained on; its codes keep their meaning."""
    encoder: Path | None = None
    """The encoder of these codes, if it was kept (:data:`ENCODER_FILE`)."""
    plain_steps: int = 16_000
    """Steps of the packaged decoder on the codes of the new encoder, before the GAN."""
    plain_seconds: float | None = None
    snapshot_seconds: float | None = None
    """Every so often the GAN leaves the decoder as a weights file in ``snapshots/``."""
    steering: int = 50
    """Steps between two looks at the mel loss, by which the pull of the discriminators is steered."""


class VoiceBoxTraining:
    """The nets, the speech and the phases; each phase starts where its checkpoint left off."""

    def __init__(self, work: Work, plan: VoiceBoxPlan, device: torch.device, watch: bool) -> None:
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.work, self.plan, self.device, self.watch = work, plan, device, watch
        self.begun = time.monotonic()
        self.arena = Arena(work, plan.hours, device, plan.held_out)
        self.speech = CodedSpeech(work, self.arena, plan.batch, plan.window, device)
        self.window = self.speech.window
        self.encoder = Encoder(plan.encoder_width, plan.encoder_blocks).to(device)
        self.decoder = self._first_decoder().to(device)
        self.phonemes = PhonemeHead().to(device)
        self.listener = Listener().to(device)
        self.mel = MelLoss().to(device)
        self.valleys = ValleyLoss().to(device)
        self.capture = plan.capture and device.type == "cuda"

    def _first_decoder(self) -> VoiceBoxNet:
        names = self.work.voices()
        if self.plan.weights is None:
            return VoiceBoxNet(replace(self.plan.config, voices=len(names)))
        known = load_voice_config(self.plan.weights).talker.voices
        if names != known:
            raise ValueError(f"{self.plan.weights} has the voices {', '.join(known)}, the speech {', '.join(names)}")
        return load_voicebox(self.plan.weights)

    def run(self) -> None:
        """All phases."""
        self.arena.wait(self.plan.first_hours, self.watch)
        self._train_codec()
        self.arena.wait(float("inf"), self.watch)
        logger.info(
            "voicebox: %.2f h in %d clips, %d held out", self.arena.hours, len(self.arena.clips), len(self.arena.held)
        )
        self._encode()
        self.decoder.requires_grad_(True).train()
        if self.plan.weights is not None:
            self._train_plain()
        self._keep_plain()
        if self.plan.gan_after is not None:
            wait_for(self.plan.gan_after, "the GAN may begin", watch=True)
        self._train_gan()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def _loop(self, phase: str, parts: dict[str, Stateful], budget: Budget) -> Loop:
        path = self.work.file("voicebox", f"{phase}.pt")
        return Loop(self.work, f"voicebox-{phase}", path, parts, budget, self.plan.report, self.device)

    # Phase 1: encoder, phoneme head and listener, with the decoder or, where that is given, to its codes.

    def _train_codec(self) -> None:
        plan, window = self.plan, self.window
        encodes, decodes = plan.encoder is None, plan.weights is None
        nets: dict[str, nn.Module] = {"listener": self.listener}
        if encodes:
            nets |= {"encoder": self.encoder, "phonemes": self.phonemes}
        else:
            self.encoder.load_state_dict(load_tensors(cast(Path, plan.encoder)))
        if decodes:
            nets["decoder"] = self.decoder
        parameters = [parameter for net in nets.values() for parameter in net.parameters()]
        optimizer = make_optimizer(parameters, 5e-4, self.device)
        loop = self._loop("codec", {**nets, "optimizer": optimizer}, Budget(plan.codec_steps, plan.codec_seconds))

        def step() -> Tensor:
            with self._autocast():
                heard, _ = self.listener(window.sound)
            loss, measures = self._labelled(heard)
            if encodes:
                with self._autocast():
                    values, _ = self.encoder(window.sound)
                    made = make(window, self.decoder, values)
                    logits = self.phonemes(values)
                    mel = self.mel(made.sound, window.sound).mean()
                    wave, pitch = wave_loss(made, window, self.decoder.window), pitch_loss(made, window)
                phoneme, right = self._labelled(logits)
                loss = loss + MEL_WEIGHT * mel + WAVE_WEIGHT * wave + PITCH_WEIGHT * pitch + phoneme
                measures = torch.cat((measures, right, torch.stack((mel, wave, pitch)).detach()))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 5.0)
            optimizer.step()
            return measures

        names = ["hearing", "listener_accuracy"]
        if encodes:
            names += ["phoneme", "phoneme_accuracy", "mel", "wave", "pitch"]
        graphed = GraphedStep(step, [optimizer], self.capture)
        for number in loop.steps():
            set_rate(optimizer, 5e-4 * loop.budget.rate(min(400, plan.codec_steps // 10), 0.05))
            self.speech.draw(plan.batch)
            if number % 50 == 49 and not self.arena.complete:
                self.arena.poll(6)
            loop.tell(names, graphed(), lambda: {"hours": self.arena.hours})
        loop.finish()
        kept = self.work.file(ENCODER_FILE)
        save_tensors(kept, self.encoder.state_dict())
        self.encoder.load_state_dict(load_tensors(kept))  # rounded by being saved: so that its codes can be made again

    def _labelled(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the window's labels; the same, detached, and the share of right ones."""
        labels = self.window.labels
        loss = F.cross_entropy(logits.float().flatten(0, 2), labels.flatten())
        return loss, torch.stack((loss.detach(), (logits.argmax(-1) == labels).float().mean()))

    # Phase 2: codes.

    def _encode(self) -> None:
        torch.backends.cudnn.benchmark = False
        self.speech.encode(self.encoder)
        loss = self.speech.held_loss(self.encoder, self.decoder)
        logger.info("voicebox: held-out mel L1 after the codec phase %.4f", loss)
        torch.backends.cudnn.benchmark = True

    def _keep_plain(self) -> None:
        """The decoder as it is before the GAN."""
        torch.backends.cudnn.benchmark = False
        logger.info("voicebox: held-out mel L1 before the GAN %.4f", self.speech.held_loss(self.encoder, self.decoder))
        self.speech.match_spectrum(self.decoder, self.plan.matched)
        torch.backends.cudnn.benchmark = True
        if self.plan.snapshot_seconds is not None:
            save_tensors(self.work.file("snapshots", "plain.safetensors"), self.decoder.state_dict())
        for name in (PLAIN_DECODER_FILE, DECODER_FILE):
            if not self.work.file(name).exists():
                save_checkpoint(self.work.file(name), self.decoder.state_dict())

    # Phase 3, of a packaged decoder: by mel loss and listener on the new encoder's codes.

    def _critics(self) -> Critics:
        listener = self.listener.eval().requires_grad_(False)
        return Critics(self.mel, self.valleys, listener, Discriminators().to(self.device), self.decoder.window)

    def _train_plain(self) -> None:
        plan = self.plan
        optimizer = make_optimizer(self.decoder.parameters(), 5e-4, self.device)
        parts: dict[str, Stateful] = {"decoder": self.decoder, "optimizer": optimizer}
        loop = self._loop("plain", parts, Budget(plan.plain_steps, plan.plain_seconds))
        window = self.window[: plan.gan_batch]
        step = plain_step(window, self._critics(), self.decoder, optimizer, self._autocast)
        graphed = GraphedStep(step, [optimizer], self.capture)
        for _ in loop.steps():
            set_rate(optimizer, 5e-4 * loop.budget.rate(min(200, plan.plain_steps // 10), 0.1))
            self.speech.draw(plan.gan_batch)
            loop.tell(_LOSSES, graphed())
        loop.finish()

    # Last phase: the decoder against discriminators, codes fixed.

    def _train_gan(self) -> None:
        plan = self.plan
        voices = len(self.work.voices())
        critics, pull = self._critics(), Pull(voices, self.device)
        optimizers = (
            make_optimizer(self.decoder.parameters(), 2e-4, self.device),
            make_optimizer(critics.judges.parameters(), 2e-4, self.device),
        )
        mean = copy.deepcopy(self.decoder).requires_grad_(False)
        parts: dict[str, Stateful] = {
            "decoder": self.decoder, "judges": critics.judges, "mean": mean, "pull": pull,
            "decoder_optimizer": optimizers[0], "judge_optimizer": optimizers[1],
        }  # fmt: skip
        loop = self._loop("gan", parts, Budget(plan.gan_steps, self._gan_seconds()))
        first = (plan.window - plan.judged) * TOKEN_SAMPLES * 3 // 4
        judged = slice(first, first + plan.judged * TOKEN_SAMPLES)
        window = self.window[: plan.gan_batch]
        step = gan_step(window, judged, critics, self.decoder, optimizers, pull.weights, self._autocast)
        graphed = GraphedStep(step, list(optimizers), self.capture)
        names = (*_LOSSES, "fool", "feature", "judge")
        mels, budget = VoiceMeans(voices, self.device), loop.budget
        shown = budget.elapsed
        for number in loop.steps():
            alone = number < plan.judges_alone
            set_rate(optimizers[0], 0.0 if alone else 2e-4 * budget.rate(plan.judges_alone + 200, 0.05))
            set_rate(optimizers[1], 2e-4 * budget.rate(100, 0.2))
            self.speech.draw(plan.gan_batch)
            measures = graphed()
            mels.add(measures[len(names) :], window.voice)
            follow(mean.parameters(), self.decoder.parameters(), plan.smoothing, number)
            if number == plan.judges_alone - 1:
                pull.settle(mels.take())
            elif not alone and number % plan.steering == 0:
                low, high = plan.slack
                pull.steer(mels.take(), low + (high - low) * min(1.0, 2 * budget.fraction))
            loop.tell(names, measures[: len(names)], lambda: self._pulls(pull))
            if number % loop.KEEP == loop.KEEP - 1:
                save_checkpoint(self.work.file(DECODER_FILE), mean.state_dict())
            if plan.snapshot_seconds is not None and budget.elapsed - shown >= plan.snapshot_seconds:
                shown = budget.elapsed
                self._snapshot(mean, number)
        loop.finish()
        if plan.snapshot_seconds is not None:
            self._snapshot(mean, budget.step)
        self._mix_with_plain(mean)
        torch.backends.cudnn.benchmark = False
        self.speech.match_spectrum(self.decoder, plan.matched)
        lift_noise(self.decoder, plan.lift)
        save_checkpoint(self.work.file(DECODER_FILE), self.decoder.state_dict())
        if plan.snapshot_seconds is not None:
            save_tensors(self.work.file("snapshots", "last.safetensors"), self.decoder.state_dict())
        logger.info("voicebox: held-out mel L1 after the GAN %.4f", self.speech.held_loss(self.encoder, self.decoder))
        self._sample()

    def _pulls(self, pull: Pull) -> dict[str, float]:
        return {
            f"pull_{voice}": weight for voice, weight in zip(self.work.voices(), pull.weights.tolist(), strict=True)
        }

    def _gan_seconds(self) -> float | None:
        if self.plan.total_seconds is None:
            return self.plan.gan_seconds
        left = self.plan.total_seconds - (time.monotonic() - self.begun)
        return max(1.0, min(left, self.plan.gan_seconds or left))

    def _mix_with_plain(self, mean: VoiceBoxNet) -> None:
        """The decoder becomes what lies between the one before the GAN and the GAN's running mean."""
        plain = load_checkpoint(self.work.file(PLAIN_DECODER_FILE), self.device)
        assert plain is not None
        self.decoder.load_state_dict(
            {name: torch.lerp(plain[name], state, self.plan.share) for name, state in mean.state_dict().items()}
        )

    def _snapshot(self, mean: VoiceBoxNet, number: int) -> None:
        """Leave the running mean as a weights file, its spectrum corrected; training goes on untouched."""
        torch.backends.cudnn.benchmark = False
        trained, self.decoder = self.decoder, copy.deepcopy(mean)
        loss = self.speech.held_loss(self.encoder, self.decoder)
        self.speech.match_spectrum(self.decoder, self.plan.matched)
        save_tensors(self.work.file("snapshots", f"gan-{number:06d}.safetensors"), self.decoder.state_dict())
        self.decoder = trained
        torch.backends.cudnn.benchmark = True
        logger.info("voicebox: held-out mel L1 at step %d of the GAN %.4f", number, loss)

    @torch.inference_mode()
    def _sample(self) -> None:
        names = self.work.voices()
        for number, held in enumerate(self.speech.held(2 * len(names))):
            made = self.speech.again(self.encoder, self.decoder, held)[0].cpu().numpy()
            self.work.keep_sample(f"voicebox-{names[held.clip.voice]}-{number}", to_pcm(made))


def voicebox_step(work: Work, plan: VoiceBoxPlan, device: torch.device, watch: bool = False) -> None:
    """Train the VoiceBox. With ``watch`` it begins on the first hours of speech and takes in the rest as it comes."""
    wait_for(work.file(VOICES_FILE), "run the step 'speech' first", watch)
    VoiceBoxTraining(work, plan, device, watch).run()
