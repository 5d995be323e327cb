"""Step ``voicebox``: encoder and decoder by mel and phoneme losses; codes of all speech; a GAN on the decoder."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.embedded.voicebox import CODES, TOKEN_SAMPLES, VoiceBoxNet
from voicechat.models.embedded.weights import VoiceBoxConfig
from voicechat.train.arena import LABEL_SAMPLES, Arena, Clip
from voicechat.train.codec import (
    LABELS,
    Discriminators,
    Encoder,
    MelLoss,
    PhonemeHead,
    feature_loss,
    fool_loss,
    judge_loss,
)
from voicechat.train.common import (
    VOICES_FILE,
    Budget,
    Curve,
    RunningMean,
    Stateful,
    Work,
    resume_training,
    save_checkpoint,
    save_training,
    to_pcm,
    wait_for,
    write_arrays,
    write_wav,
)
from voicechat.train.graphed import GraphedStep, make_optimizer, set_rate
from voicechat.train.spectrum import add_to_spectrum, spectrum_difference

logger = logging.getLogger("voicechat.train")

CODES_FILE = "codes.npz"
DECODER_FILE = "decoder.pt"
PLAIN_DECODER_FILE = "decoder-plain.pt"
"""The decoder as it was before the GAN."""


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
    adversarial: float = 0.3
    """Pull of the discriminators on the sound beside that of the mel loss (sizes of their gradients).

    At 1.5 the sound got hardly better and was much harder to understand.
    """
    smoothing: float = 0.999
    """The decoder that is kept is a running mean of the GAN's, with this memory per step."""
    judged: int = 16
    gan_steps: int = 20_000
    gan_seconds: float | None = None
    judges_alone: int = 300
    """First steps of the GAN in which only the discriminators learn."""
    matched: int = 60
    """Training clips of each voice by which the decoder's mean spectrum is corrected in the end."""
    report: int = 500
    capture: bool = True
    gan_after: Path | None = None
    """The GAN waits for this file: leaves a shared GPU to the Talker first."""


class VoiceBoxTraining:
    """The nets, the speech and the three phases; each phase starts where its checkpoint left off."""

    def __init__(self, work: Work, plan: VoiceBoxPlan, device: torch.device, watch: bool) -> None:
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.work, self.plan, self.device, self.watch = work, plan, device, watch
        self.arena = Arena(work, plan.hours, device, plan.held_out)
        self.encoder = Encoder(plan.encoder_width, plan.encoder_blocks).to(device)
        config = replace(plan.config, voices=len(work.voices()))
        self.decoder = VoiceBoxNet(config).to(device)
        self.phonemes = PhonemeHead().to(device)
        self.mel = MelLoss().to(device)
        self.capture = plan.capture and device.type == "cuda"
        self.sound = torch.zeros(plan.batch, plan.window * TOKEN_SAMPLES, device=device)
        self.labels = torch.zeros(plan.batch, plan.window, LABELS, dtype=torch.long, device=device)
        self.codes = torch.zeros(plan.gan_batch, plan.window, dtype=torch.long, device=device)
        self.voices = torch.zeros(plan.batch, plan.window, dtype=torch.long, device=device)
        self.arena_codes = torch.zeros(0, dtype=torch.int16)

    def run(self) -> None:
        """All phases."""
        self.arena.wait(self.plan.first_hours, self.watch)
        self._train_codec()
        self.arena.wait(float("inf"), self.watch)
        logger.info(
            "voicebox: %.2f h in %d clips, %d held out", self.arena.hours, len(self.arena.clips), len(self.arena.held)
        )
        self._encode()
        if self.plan.gan_after is not None:
            wait_for(self.plan.gan_after, "the GAN may begin", watch=True)
        self._train_gan()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)

    # Phase 1: encoder, decoder and phoneme head together.

    def _train_codec(self) -> None:
        plan = self.plan
        parameters = [*self.encoder.parameters(), *self.decoder.parameters(), *self.phonemes.parameters()]
        optimizer = make_optimizer(parameters, 5e-4, self.device)
        path = self.work.file("voicebox", "codec.pt")
        budget = Budget(plan.codec_steps, plan.codec_seconds)
        parts = {
            "encoder": self.encoder, "decoder": self.decoder, "phonemes": self.phonemes, "optimizer": optimizer,
        }  # fmt: skip
        resume_training(path, parts, budget, self.device)

        def step() -> Tensor:
            with self._autocast():
                values, _ = self.encoder(self.sound)
                made = self.decoder(values, self.voices)
                logits = self.phonemes(values)
            mel = self.mel(made, self.sound)
            phoneme = F.cross_entropy(logits.float().flatten(0, 2), self.labels.flatten())
            (15 * mel + phoneme).backward()
            nn.utils.clip_grad_norm_(parameters, 5.0)
            optimizer.step()
            right = (logits.argmax(-1) == self.labels).float().mean()
            return torch.stack((mel.detach(), phoneme.detach(), right))

        graphed = GraphedStep(step, [optimizer], self.capture)
        curve, recent = Curve(self.work, "voicebox-codec"), RunningMean()
        for number in budget.run():
            set_rate(optimizer, 5e-4 * budget.rate(min(400, plan.codec_steps // 10), 0.05))
            self._draw_sound()
            recent.add(graphed())
            if number % 50 == 49 and not self.arena.complete:
                self.arena.poll(6)
            if number % plan.report == 0 or number == plan.codec_steps - 1:
                mel, phoneme, right = recent.take()
                curve.add(budget, mel=mel, phoneme=phoneme, phoneme_accuracy=right, hours=self.arena.hours)
            if number % 2000 == 1999:
                save_training(path, parts, budget)
        save_training(path, parts, budget)
        curve.plot()

    def _draw_sound(self) -> None:
        plan = self.plan
        tokens = self.arena.draw(plan.batch, plan.window)
        starts = tokens * LABELS + torch.randint(0, LABELS, (plan.batch,), device=self.device)
        self.sound.copy_(self.arena.windows(starts * LABEL_SAMPLES, self.sound.shape[1]))
        index = starts[:, None] + torch.arange(plan.window * LABELS, device=self.device)
        self.labels.copy_(self.arena.labels[index].long().unflatten(1, (plan.window, LABELS)))
        self.voices.copy_(self.arena.voices[tokens[:, None] + torch.arange(plan.window, device=self.device)].long())

    # Phase 2: codes.

    @torch.inference_mode()
    def _encode(self) -> None:
        self.encoder.eval()
        torch.backends.cudnn.benchmark = False
        silence = self._codes_of(torch.zeros(1, 32 * TOKEN_SAMPLES, device=self.device))[0, 16]
        self.arena_codes = silence.repeat(self.arena.tokens + self.plan.window).to(torch.int16)
        made: list[tuple[Clip, Tensor]] = []
        clips = sorted(self.arena.clips, key=lambda clip: clip.tokens)
        for start in range(0, len(clips), 128):
            part = clips[start : start + 128]
            length = max(clip.tokens for clip in part) * TOKEN_SAMPLES
            firsts = torch.tensor([clip.token * TOKEN_SAMPLES for clip in part], device=self.device)
            ends = torch.tensor([clip.tokens * TOKEN_SAMPLES for clip in part], device=self.device)
            inside = torch.arange(length, device=self.device) < ends[:, None]
            index = (firsts[:, None] + torch.arange(length, device=self.device)).clamp(max=len(self.arena.sound) - 1)
            codes = self._codes_of(self.arena.sound[index].float() / 32768 * inside).to(torch.int16)
            for row, clip in enumerate(part):
                own = codes[row, : clip.tokens]
                self.arena_codes[clip.token : clip.token + clip.tokens] = own
                made.append((clip, own.cpu()))
        for clip, pcm in self.arena.held:
            made.append((clip, self._codes_of(self._held_sound(clip, pcm))[0].to(torch.int16).cpu()))
        every = torch.cat([codes for _, codes in made]).long()
        share = torch.bincount(every, minlength=CODES).float() / len(every)
        perplexity = torch.exp(-(share * torch.log(share + 1e-9)).sum()).item()
        logger.info("voicebox: %d codes, perplexity %.0f, %d in use", len(every), perplexity, int((share > 0).sum()))
        write_arrays(
            self.work.file(CODES_FILE),
            voice=np.asarray([clip.voice for clip, _ in made], np.int64),
            text_set=np.asarray([clip.text_set for clip, _ in made]),
            index=np.asarray([clip.index for clip, _ in made], np.int64),
            counts=np.asarray([len(codes) for _, codes in made], np.int64),
            codes=np.concatenate([codes.numpy() for _, codes in made]),
        )
        torch.backends.cudnn.benchmark = True
        logger.info("voicebox: held-out mel L1 after the codec phase %.4f", self._held_loss())
        self._match_spectrum()
        for name in (PLAIN_DECODER_FILE, DECODER_FILE):
            if not self.work.file(name).exists():
                save_checkpoint(self.work.file(name), self.decoder.state_dict())

    def _codes_of(self, sound: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            codes: Tensor = self.encoder(sound)[1]
        return codes

    @torch.inference_mode()
    def _held_loss(self) -> float:
        self.decoder.eval()
        losses = [self.mel(self._again(clip, pcm), self._held_sound(clip, pcm)).item() for clip, pcm in self._held(45)]
        self.decoder.train()
        return float(np.mean(losses)) if losses else float("nan")

    @torch.inference_mode()
    def _match_spectrum(self) -> None:
        """Correct the decoder's mean spectrum by some training clips of each voice."""
        pairs = []
        self.decoder.eval()
        for voice in range(len(self.work.voices())):
            for clip in [clip for clip in self.arena.clips if clip.voice == voice][: self.plan.matched]:
                first = clip.token * TOKEN_SAMPLES
                sound = self.arena.sound[None, first : first + clip.tokens * TOKEN_SAMPLES].float() / 32768
                codes = self.arena_codes[None, clip.token : clip.token + clip.tokens].long()
                made = self.decoder.decode(codes, torch.tensor([voice], device=self.device))
                pairs.append((sound[0], made[0]))
        difference = spectrum_difference(pairs)
        add_to_spectrum(self.decoder, difference)
        self.decoder.train()
        least, most = (8.686 * end.item() for end in difference.aminmax())
        logger.info("voicebox: spectrum corrected by %.1f to %.1f dB", least, most)

    def _held(self, count: int) -> list[tuple[Clip, Tensor]]:
        """Some held-out clips, the voices in turn."""
        return sorted(self.arena.held, key=lambda one: (one[0].index, one[0].text_set, one[0].voice))[:count]

    def _held_sound(self, clip: Clip, pcm: Tensor) -> Tensor:
        return F.pad(pcm.float() / 32768, (0, clip.tokens * TOKEN_SAMPLES - len(pcm))).to(self.device)[None]

    def _again(self, clip: Clip, pcm: Tensor) -> Tensor:
        """A clip through encoder and decoder."""
        voices = torch.tensor([clip.voice], device=self.device)
        return self.decoder.decode(self._codes_of(self._held_sound(clip, pcm)), voices)

    # Phase 3: the decoder against discriminators, codes fixed.

    def _train_gan(self) -> None:
        plan = self.plan
        judges = Discriminators().to(self.device)
        decoder_optimizer = make_optimizer(self.decoder.parameters(), 3e-4, self.device)
        judge_optimizer = make_optimizer(judges.parameters(), 4e-4, self.device)
        path = self.work.file("voicebox", "gan.pt")
        budget = Budget(plan.gan_steps, plan.gan_seconds)
        parts: dict[str, Stateful] = {
            "decoder": self.decoder, "judges": judges,
            "decoder_optimizer": decoder_optimizer, "judge_optimizer": judge_optimizer,
        }  # fmt: skip
        mean = copy.deepcopy(self.decoder).requires_grad_(False)
        parts["mean"] = mean
        resume_training(path, parts, budget, self.device)
        graphed = GraphedStep(
            self._gan_step(judges, decoder_optimizer, judge_optimizer),
            [decoder_optimizer, judge_optimizer], self.capture,
        )  # fmt: skip
        curve, recent = Curve(self.work, "voicebox-gan"), RunningMean()
        for number in budget.run():
            alone = number < plan.judges_alone
            set_rate(decoder_optimizer, 0.0 if alone else 3e-4 * budget.rate(200, 0.05))
            set_rate(judge_optimizer, 2e-4 * budget.rate(100, 0.2))
            self._draw_codes()
            recent.add(graphed())
            smoothing = min(plan.smoothing, (number + 1) / (number + 10))
            with torch.no_grad():
                torch._foreach_lerp_(list(mean.parameters()), list(self.decoder.parameters()), 1 - smoothing)
            if number % plan.report == 0 or number == plan.gan_steps - 1:
                mel, fool, feature, judge = recent.take()
                curve.add(budget, mel=mel, fool=fool, feature=feature, judge=judge)
            if number % 2000 == 1999:
                save_training(path, parts, budget)
                save_checkpoint(self.work.file(DECODER_FILE), mean.state_dict())
        save_training(path, parts, budget)
        self.decoder.load_state_dict(mean.state_dict())
        self._match_spectrum()
        save_checkpoint(self.work.file(DECODER_FILE), self.decoder.state_dict())
        torch.backends.cudnn.benchmark = False
        curve.plot()
        logger.info("voicebox: held-out mel L1 after the GAN %.4f", self._held_loss())
        self._sample()

    def _gan_step(
        self, judges: Discriminators, decoder_optimizer: torch.optim.Optimizer, judge_optimizer: torch.optim.Optimizer
    ) -> Callable[[], Tensor]:
        """One step of both sides.

        Mel loss and discriminators pull at the sound with fixed shares, whatever the sizes of their losses: their
        gradients with respect to the sound are brought to fixed lengths before they go on into the decoder.
        """
        plan = self.plan
        sound, voices = self.sound[: plan.gan_batch], self.voices[: plan.gan_batch]
        first = (plan.window - plan.judged) * TOKEN_SAMPLES * 3 // 4
        judged = slice(first, first + plan.judged * TOKEN_SAMPLES)

        def step() -> Tensor:
            with self._autocast():
                made = self.decoder(self.decoder.quantizer.values(self.codes), voices)
                real_verdicts = judges(sound[:, judged])
                judge = judge_loss(real_verdicts, judges(made[:, judged].detach()))
            judge.backward()
            judge_optimizer.step()
            judges.requires_grad_(False)
            leaf = made.detach().requires_grad_()
            with self._autocast():
                verdicts = judges(leaf[:, judged])
                with torch.no_grad():
                    real_verdicts = judges(sound[:, judged])
            fool, feature = fool_loss(verdicts), feature_loss(real_verdicts, verdicts)
            mel = self.mel(leaf, sound)
            (by_mel,) = torch.autograd.grad(mel, leaf)
            (by_judges,) = torch.autograd.grad(fool + feature, leaf)
            pull = by_mel / (by_mel.norm() + 1e-8) + plan.adversarial * by_judges / (by_judges.norm() + 1e-8)
            made.backward(pull)
            nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
            decoder_optimizer.step()
            judges.requires_grad_(True)
            return torch.stack((mel.detach(), fool.detach(), feature.detach(), judge.detach()))

        return step

    def _draw_codes(self) -> None:
        plan = self.plan
        starts = self.arena.draw(plan.gan_batch, plan.window)
        sound = self.arena.windows(starts * TOKEN_SAMPLES, self.sound.shape[1])
        self.sound[: plan.gan_batch].copy_(sound)
        index = starts[:, None] + torch.arange(plan.window, device=self.device)
        self.codes.copy_(self.arena_codes[index].long())
        self.voices[: plan.gan_batch].copy_(self.arena.voices[index].long())

    @torch.inference_mode()
    def _sample(self) -> None:
        names = self.work.voices()
        for number, (clip, pcm) in enumerate(self._held(2 * len(names))):
            made = self._again(clip, pcm)[0].cpu().numpy()
            write_wav(self.work.file("samples", f"voicebox-{names[clip.voice]}-{number}.wav"), to_pcm(made))


def voicebox_step(work: Work, plan: VoiceBoxPlan, device: torch.device, watch: bool = False) -> None:
    """Train the VoiceBox. With ``watch`` it begins on the first hours of speech and takes in the rest as it comes."""
    wait_for(work.file(VOICES_FILE), "run the step 'speech' first", watch)
    VoiceBoxTraining(work, plan, device, watch).run()
