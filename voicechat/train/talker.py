"""Step ``talker``: the Talker on codes, pointers, symbols and hidden states."""

from __future__ import annotations

import copy
import logging
import math
import random
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voicechat.models.embedded.talker import ADVANCES, BOS, CODES, TalkerNet
from voicechat.models.embedded.voicebox import VoiceBoxNet
from voicechat.models.embedded.weights import TalkerConfig, VoiceBoxConfig
from voicechat.train.coded import CODES_FILE
from voicechat.train.common import (
    Budget,
    Curve,
    Loop,
    Stateful,
    Work,
    follow,
    load_checkpoint,
    save_checkpoint,
    to_pcm,
    wait_for,
    write_arrays,
    write_json,
)
from voicechat.train.data import IGNORED, Batch, TalkerClip, TalkerData
from voicechat.train.generate import Prompt, generate
from voicechat.train.voicebox import DECODER_FILE

logger = logging.getLogger("voicechat.train")

TALKER_FILE = "talker.pt"
HELD_FILE = "held.npz"


@dataclass(frozen=True, slots=True)
class TalkerPlan:
    """Sizes and budget of the step."""

    config: TalkerConfig = field(default_factory=TalkerConfig)
    voicebox: VoiceBoxConfig = field(default_factory=VoiceBoxConfig)
    held_out: int = 100
    longest: int = 1200
    batch_steps: int = 24_000
    steps: int = 14_000
    seconds: float | None = None
    rate: float = 1e-3
    warm_up: int = 300
    dropout: float = 0.1
    hidden_dropout: float = 0.5
    """Share of the sequences that see no hidden states."""
    bottleneck: int = 48
    """The hidden states pass through so few numbers, noise and dropout, so that they cannot be learnt by heart."""
    hidden_noise: float = 0.3
    hidden_decay: float = 0.3
    smoothing: float = 0.999
    """What is judged and kept is a running mean of the weights, with this memory per step."""
    corrupt: float = 0.08
    report: int = 500
    validated: int = 40
    """Held-out texts, as each voice speaks them, that choose the best net."""
    speak: int = 24
    evaluated: int = 100
    """Held-out replies of each Thinker whose rows are kept for the evaluation."""


class HiddenPaths(nn.Module):
    """How each Thinker's hidden states come to the Talker's rows in training: through a bottleneck.

    Its two matrices are multiplied out into the Thinker's one matrix of the net (:meth:`fold`).
    """

    def __init__(self, plan: TalkerPlan) -> None:
        super().__init__()
        self.noise = plan.hidden_noise
        width = plan.config.width
        self.narrow = nn.ModuleList(
            nn.Linear(hidden, plan.bottleneck, bias=False) for _, hidden in plan.config.thinkers
        )
        self.wide = nn.ModuleList(nn.Linear(plan.bottleneck, width, bias=False) for _ in plan.config.thinkers)
        for matrix in self.wide:
            nn.init.normal_(cast(nn.Linear, matrix).weight, std=0.02 / math.sqrt(plan.bottleneck))

    def forward(self, thinker: int, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] to [..., width]."""
        normal = F.layer_norm(hidden.float(), hidden.shape[-1:])
        if self.training:
            normal = F.dropout(normal + self.noise * torch.randn_like(normal), 0.1)
        return cast(Tensor, self.wide[thinker](self.narrow[thinker](normal)))

    @torch.no_grad()
    def fold(self, net: TalkerNet) -> None:
        """Write the products into the net."""
        for narrow, wide, matrix in zip(self.narrow, self.wide, net.thinkers, strict=True):
            cast(nn.Linear, matrix).weight.copy_(cast(nn.Linear, wide).weight @ cast(nn.Linear, narrow).weight)


class TalkerTraining:
    """Net, data and loop; resumes from its checkpoint. What is kept is the mean that was best on held-out texts."""

    def __init__(self, work: Work, plan: TalkerPlan, device: torch.device) -> None:
        torch.manual_seed(0)
        plan = replace(plan, config=replace(plan.config, voices=work.voices()))
        self.work, self.plan, self.device = work, plan, device
        self.order = [name for name, _ in plan.config.thinkers]
        self.data = TalkerData(work, self.order, device, plan.held_out, plan.longest)
        self.names = [name for name in self.order if name in self.data.states]
        self.net = TalkerNet(plan.config, plan.dropout).to(device)
        self.paths = HiddenPaths(plan).to(device)
        self.mean = copy.deepcopy(nn.ModuleList((self.net, self.paths))).requires_grad_(False).eval()
        self.random = random.Random(0)
        held = sorted(self.data.held, key=lambda clip: (clip.index, clip.text_set))
        voices = range(len(plan.config.voices))
        self.shown = [[clip for clip in held if clip.voice == voice][: plan.validated] for voice in voices]

    def run(self) -> None:
        """Train, then write the net, the held-out rows and a few spoken replies."""
        plan, net = self.plan, self.net
        optimizer = self._optimizer()
        path = self.work.file("talker", "training.pt")
        parts: dict[str, Stateful] = {"net": net, "paths": self.paths, "mean": self.mean, "optimizer": optimizer}
        budget = Budget(plan.steps, plan.seconds)
        loop = Loop(self.work, "talker", path, parts, budget, plan.report, self.device)
        curve, recent = loop.curve, loop.recent
        self.save_held()
        best = min((point["score"] for point in curve.points), default=math.inf)
        queue: list[list[TalkerClip]] = []
        for number in loop.steps():
            if not queue:
                queue = self.data.batches(plan.batch_steps, self.random)
            for group in optimizer.param_groups:
                group["lr"] = plan.rate * budget.rate(plan.warm_up)
            batch = self.data.batch(queue.pop())
            loss = self._loss(net, self.paths, batch, self._pick_hidden(batch))[0]
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            follow(self.mean.parameters(), [*net.parameters(), *self.paths.parameters()], plan.smoothing, number)
            recent.add(loss.detach()[None])
            if loop.due:
                best = self._report(curve, budget, recent.take()[0], best)
        if budget.step and not (curve.points and curve.points[-1]["step"] >= budget.step - 1):
            best = self._report(curve, budget, (recent.take() or [math.nan])[0], best)
        loop.finish()
        state = load_checkpoint(self.work.file(TALKER_FILE), self.device)
        if state is None:
            raise FileNotFoundError(f"{self.work.file(TALKER_FILE)} is missing though the training is over")
        net.load_state_dict(state)
        logger.info("talker: %d steps in %.0f s; best held-out score %.4f", budget.step, budget.elapsed, best)
        self._speak()

    def _optimizer(self) -> torch.optim.AdamW:
        trained = [(name, one) for name, one in self.net.named_parameters() if not name.startswith("thinkers.")]
        groups = [
            {"params": [one for _, one in trained if one.ndim > 1], "weight_decay": 0.1},
            {"params": [one for _, one in trained if one.ndim < 2], "weight_decay": 0.0},
            {"params": list(self.paths.parameters()), "weight_decay": self.plan.hidden_decay},
        ]
        return torch.optim.AdamW(groups, self.plan.rate, betas=(0.9, 0.98), fused=self.device.type == "cuda")

    def _mean(self) -> tuple[TalkerNet, HiddenPaths]:
        net, paths = self.mean
        assert isinstance(net, TalkerNet)
        assert isinstance(paths, HiddenPaths)
        return net, paths

    def _report(self, curve: Curve, budget: Budget, loss: float, best: float) -> float:
        """Measure, record, keep the net if it is the best so far; returns the best score."""
        measures = self.validate()
        curve.add(budget, loss=loss, **measures)
        if measures["score"] < best:
            net, paths = self._mean()
            paths.fold(net)
            save_checkpoint(self.work.file(TALKER_FILE), net.state_dict())
        return min(best, measures["score"])

    def _pick_hidden(self, batch: Batch) -> tuple[str, Tensor] | None:
        """A Thinker for this batch, and which sequences see its states."""
        if not self.names:
            return None
        kept = torch.rand(len(batch.inputs), 1, device=self.device) >= self.plan.hidden_dropout
        return self.random.choice(self.names), kept

    def _loss(
        self, net: TalkerNet, paths: HiddenPaths, batch: Batch, hidden: tuple[str, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy and code accuracy of a batch."""
        inputs = batch.inputs
        if net.training:
            noise = torch.rand(inputs.shape, device=self.device) < self.plan.corrupt
            drawn = torch.randint(0, CODES, inputs.shape, device=self.device) * ADVANCES
            inputs = torch.where(noise & (inputs != BOS), drawn, inputs)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            rows = net.embed(inputs) + net.conditioner.embed_symbols(self.data.windows(batch.rows))
            rows = rows + net.conditioner.voice(batch.voices)[:, None]
            if hidden is not None:
                name, kept = hidden
                states, there = self.data.hidden(name, batch.rows)
                rows = rows + paths(self.order.index(name), states) * (there & kept)[..., None]
            final = net(rows)
            mask = (batch.targets != IGNORED).flatten().float()
            losses, right = net.loss(final.flatten(0, 1), batch.targets.clamp(min=0).flatten())
        return (losses * mask).sum() / mask.sum(), (right * mask).sum() / mask.sum()

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Held-out cross-entropy per voice from text alone, over all voices without and with each Thinker's states.

        ``score`` is the mean of text alone and of the Thinkers: what the best net is chosen by.
        """
        net, paths = self._mean()
        out: dict[str, float] = {}
        means = []
        for name in (None, *self.names):
            sums = np.zeros(3)
            for voice, clips in zip(self.plan.config.voices, self.shown, strict=True):
                own = np.zeros(3)
                for start in range(0, len(clips), 40):
                    batch = self.data.batch(clips[start : start + 40])
                    kept = torch.ones(len(batch.inputs), 1, dtype=torch.bool, device=self.device)
                    loss, right = self._loss(net, paths, batch, (name, kept) if name is not None else None)
                    count = int((batch.targets != IGNORED).sum())
                    own += np.asarray((loss.item() * count, right.item() * count, count))
                if name is None:
                    out[f"ce_{voice}"] = round(own[0] / max(1.0, own[2]), 4)
                sums += own
            label = name or "text"
            out[f"ce_{label}"], out[f"accuracy_{label}"] = (sums[:2] / max(1.0, sums[2])).round(4).tolist()
            means.append(out[f"ce_{label}"])
        out["score"] = round(0.5 * means[0] + 0.5 * float(np.mean(means[1:] or means)), 5)
        return out

    def prompt(self, clip: TalkerClip, thinker: str | None) -> Prompt:
        """A clip's rows, with one Thinker's states or none."""
        rows = torch.arange(clip.row, clip.row + clip.rows, device=self.device)
        if thinker is None:
            return Prompt(self.data.symbols[rows], voice=clip.voice)
        states, _ = self.data.hidden(thinker, rows)
        return Prompt(self.data.symbols[rows], states.float(), self.order.index(thinker), clip.voice)

    def save_held(self) -> None:
        """Write rows and hidden states of held-out replies and each voice's codes and pointers: what evaluation needs.

        Arrays: ``KEY.symbols``, ``KEY.hidden``, ``KEY.codes.VOICE`` and, as long, ``KEY.pointers.VOICE``, the row on
        which each code's step stands; ``KEY`` is ``SET-INDEX``.
        """
        arrays: dict[str, np.ndarray] = {}
        items = []
        texts = {name: self.work.texts(name) for name in self.work.text_sets()}
        for clip in self.data.held:
            if clip.index >= self.plan.evaluated:
                continue
            key = f"{clip.text_set}-{clip.index}"
            steps, voice = slice(clip.step, clip.step + clip.steps), self.plan.config.voices[clip.voice]
            codes, rows = self.data.targets[steps] // ADVANCES, self.data.pointers[steps] - clip.row
            arrays[f"{key}.codes.{voice}"] = codes.cpu().numpy().astype(np.int16)
            arrays[f"{key}.pointers.{voice}"] = rows.cpu().numpy().astype(np.int32)
            if f"{key}.symbols" in arrays:
                continue
            owner = clip.text_set if clip.text_set in self.names else None
            items.append({"key": key, "thinker": owner, **texts[clip.text_set][clip.index]})
            prompt = self.prompt(clip, owner)
            arrays[f"{key}.symbols"] = prompt.symbols.cpu().numpy().astype(np.uint8)
            if prompt.hidden is not None:
                arrays[f"{key}.hidden"] = prompt.hidden.half().cpu().numpy()
        write_arrays(self.work.file(HELD_FILE), compress=True, **arrays)
        write_json(self.work.file("held.json"), items)

    def _speak(self) -> None:
        """Generate some held-out replies, measure their length beside the teacher's, keep three as sound."""
        self.net.eval()
        decoder_state = load_checkpoint(self.work.file(DECODER_FILE), self.device)
        if decoder_state is None:
            return
        voices = self.plan.config.voices
        voicebox = VoiceBoxNet(replace(self.plan.voicebox, voices=len(voices))).to(self.device).eval()
        voicebox.load_state_dict(decoder_state)
        for thinker, temperature in ((None, 0.0), (None, 0.3), (None, 0.6), *((name, 0.3) for name in self.names)):
            clips = [clip for own in self.shown for clip in own[: max(1, self.plan.speak // len(voices))]]
            if not clips:
                return
            made = generate(self.net, [self.prompt(clip, thinker) for clip in clips], temperature=temperature)
            ratios = [len(one.codes) / clip.steps for one, clip in zip(made, clips, strict=True)]
            logger.info(
                "talker: %s T %.1f: %d of %d ended, length %.2f (%.2f to %.2f) x the teacher's, longest dwell %d",
                thinker or "text", temperature, sum(one.ended for one in made), len(made),
                float(np.mean(ratios)), min(ratios), max(ratios), max(one.longest_dwell for one in made),
            )  # fmt: skip
            for clip, one in zip(clips, made, strict=True):
                if one.codes and temperature == 0.3 and clip.index < 2:
                    codes, voice = (torch.tensor([given], device=self.device) for given in (one.codes, clip.voice))
                    sound = voicebox.decode(codes, one.windows[None].to(self.device), voice)[0].cpu().numpy()
                    name = f"talker-{voices[clip.voice]}-{thinker or 'text'}-{clip.text_set}-{clip.index}"
                    self.work.keep_sample(name, to_pcm(sound))


def talker_step(work: Work, plan: TalkerPlan, device: torch.device, watch: bool = False) -> None:
    """Train the Talker once the codes are there."""
    wait_for(work.file(CODES_FILE), "run the step 'voicebox' first", watch)
    TalkerTraining(work, plan, device).run()
