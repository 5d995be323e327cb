"""Step ``talker``: the Talker on codes, pointers, symbols and hidden states."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from voicechat.models.embedded.talker import ADVANCES, BOS, CODES, TalkerNet, project_hidden
from voicechat.models.embedded.voicebox import VoiceBoxNet
from voicechat.models.embedded.weights import TalkerConfig, VoiceBoxConfig
from voicechat.train.common import (
    Budget,
    Curve,
    RunningMean,
    Work,
    load_checkpoint,
    resume_training,
    save_checkpoint,
    save_training,
    to_pcm,
    wait_for,
    write_arrays,
    write_json,
    write_wav,
)
from voicechat.train.data import IGNORED, Batch, TalkerClip, TalkerData
from voicechat.train.generate import Prompt, generate
from voicechat.train.voicebox import CODES_FILE, DECODER_FILE

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
    corrupt: float = 0.08
    report: int = 500
    speak: int = 24
    evaluated: int = 30
    """Held-out replies of each Thinker whose rows are kept for the evaluation."""


class TalkerTraining:
    """Net, data and loop; resumes from its checkpoint."""

    def __init__(self, work: Work, plan: TalkerPlan, device: torch.device) -> None:
        torch.manual_seed(0)
        self.work, self.plan, self.device = work, plan, device
        self.names = [name for name, _ in plan.config.thinkers]
        self.data = TalkerData(work, self.names, device, plan.held_out, plan.longest)
        self.names = [name for name in self.names if name in self.data.states]
        self.net = TalkerNet(plan.config, plan.dropout).to(device)
        self.random = random.Random(0)

    def run(self) -> None:
        """Train, then write the net, the held-out rows and a few spoken replies."""
        plan, net = self.plan, self.net
        matrices = [parameter for parameter in net.parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in net.parameters() if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, plan.rate, betas=(0.9, 0.98), fused=self.device.type == "cuda")
        budget = Budget(plan.steps, plan.seconds)
        path = self.work.file("talker", "training.pt")
        parts = {"net": net, "optimizer": optimizer}
        resume_training(path, parts, budget, self.device)
        self.save_held()
        curve = Curve(self.work, "talker")
        queue: list[list[TalkerClip]] = []
        recent = RunningMean()
        for number in budget.run():
            if not queue:
                queue = self.data.batches(plan.batch_steps, self.random)
            for group in optimizer.param_groups:
                group["lr"] = plan.rate * budget.rate(plan.warm_up)
            batch = self.data.batch(queue.pop())
            loss = self._loss(batch, self._pick_hidden(batch))[0]
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            recent.add(loss.detach()[None])
            if number % plan.report == 0 or number == plan.steps - 1:
                curve.add(budget, loss=recent.take()[0], **self.validate())
            if number % 2000 == 1999:
                save_training(path, parts, budget)
                self._save()
        save_training(path, parts, budget)
        self._save()
        curve.plot()
        logger.info("talker: %d steps in %.0f s; held-out %s", budget.step, budget.elapsed, self.validate())
        self._speak()

    def _save(self) -> None:
        save_checkpoint(self.work.file(TALKER_FILE), self.net.state_dict())

    def _pick_hidden(self, batch: Batch) -> tuple[str, Tensor] | None:
        """A Thinker for this batch, and which sequences see its states."""
        if not self.names:
            return None
        kept = torch.rand(len(batch.inputs), 1, device=self.device) >= self.plan.hidden_dropout
        return self.random.choice(self.names), kept

    def _loss(self, batch: Batch, hidden: tuple[str, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy and code accuracy of a batch."""
        net = self.net
        inputs = batch.inputs
        if net.training:
            noise = torch.rand(inputs.shape, device=self.device) < self.plan.corrupt
            drawn = torch.randint(0, CODES, inputs.shape, device=self.device) * ADVANCES
            inputs = torch.where(noise & (inputs != BOS), drawn, inputs)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            rows = net.embed(inputs) + net.conditioner.embed_symbols(self.data.windows(batch.rows))
            rows = rows + net.conditioner.voice.weight[0]
            if hidden is not None:
                name, kept = hidden
                states, there = self.data.hidden(name, batch.rows)
                matrix = net.thinkers[[known for known, _ in self.plan.config.thinkers].index(name)]
                assert isinstance(matrix, nn.Linear)
                rows = rows + project_hidden(matrix, states) * (there & kept)[..., None]
            final = net(rows)
            mask = (batch.targets != IGNORED).flatten().float()
            losses, right = net.loss(final.flatten(0, 1), batch.targets.clamp(min=0).flatten())
        return (losses * mask).sum() / mask.sum(), (right * mask).sum() / mask.sum()

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Held-out cross-entropy without hidden states and with each Thinker's, and code accuracy."""
        self.net.eval()
        out: dict[str, float] = {}
        for name in (None, *self.names):
            sums = np.zeros(3)
            for start in range(0, len(self.data.held), 40):
                batch = self.data.batch(self.data.held[start : start + 40])
                shown = None
                if name is not None:
                    shown = (name, torch.ones(len(batch.inputs), 1, dtype=torch.bool, device=self.device))
                loss, right = self._loss(batch, shown)
                count = int((batch.targets != IGNORED).sum())
                sums += np.asarray((loss.item() * count, right.item() * count, count))
            label = name or "text"
            out[f"ce_{label}"], out[f"accuracy_{label}"] = (sums[:2] / max(1.0, sums[2])).round(4).tolist()
        self.net.train()
        return out

    def prompt(self, clip: TalkerClip, thinker: str | None) -> Prompt:
        """A clip's rows, with one Thinker's states or none."""
        rows = torch.arange(clip.row, clip.row + clip.rows, device=self.device)
        if thinker is None:
            return Prompt(self.data.symbols[rows])
        states, _ = self.data.hidden(thinker, rows)
        number = [name for name, _ in self.plan.config.thinkers].index(thinker)
        return Prompt(self.data.symbols[rows], states.float(), number)

    def save_held(self) -> None:
        """Write rows, hidden states and the encoder's codes of held-out replies: all that evaluation needs."""
        arrays: dict[str, np.ndarray] = {}
        items = []
        texts = {name: self.work.texts(name) for name in self.work.text_sets()}
        for clip in self.data.held:
            if clip.index >= self.plan.evaluated:
                continue
            key = f"{clip.text_set}-{clip.index}"
            owner = clip.text_set if clip.text_set in self.names else None
            items.append({"key": key, "thinker": owner, **texts[clip.text_set][clip.index]})
            prompt = self.prompt(clip, owner)
            codes = self.data.targets[clip.step : clip.step + clip.steps] // ADVANCES
            arrays[f"{key}.symbols"] = prompt.symbols.cpu().numpy().astype(np.uint8)
            arrays[f"{key}.codes"] = codes.cpu().numpy().astype(np.int16)
            if prompt.hidden is not None:
                arrays[f"{key}.hidden"] = prompt.hidden.half().cpu().numpy()
        write_arrays(self.work.file(HELD_FILE), compress=True, **arrays)
        write_json(self.work.file("held.json"), items)

    def _speak(self) -> None:
        """Generate some held-out replies, measure their length beside the teacher's, keep three as sound."""
        self.net.eval()
        clips = self.data.held[: self.plan.speak]
        decoder_state = load_checkpoint(self.work.file(DECODER_FILE), self.device)
        if not clips or decoder_state is None:
            return
        voicebox = VoiceBoxNet(self.plan.voicebox).to(self.device).eval()
        voicebox.load_state_dict(decoder_state)
        for thinker in (None, *self.names):
            for temperature in (0.0, 0.3, 0.6):
                made = generate(self.net, [self.prompt(clip, thinker) for clip in clips], temperature=temperature)
                ratios = [len(one.codes) / clip.steps for one, clip in zip(made, clips, strict=True)]
                logger.info(
                    "talker: %s T %.1f: %d of %d ended, length %.2f (%.2f to %.2f) x the teacher's, longest dwell %d",
                    thinker or "text", temperature, sum(one.ended for one in made), len(made),
                    float(np.mean(ratios)), min(ratios), max(ratios), max(one.longest_dwell for one in made),
                )  # fmt: skip
                for number, one in enumerate(made[:2]):
                    if one.codes and temperature == 0.3:
                        codes = torch.tensor([one.codes], device=self.device)
                        sound = voicebox.decode(codes)[0].cpu().numpy()
                        name = f"talker-{thinker or 'text'}-{number}.wav"
                        write_wav(self.work.file("samples", name), to_pcm(sound))


def talker_step(work: Work, plan: TalkerPlan, device: torch.device, watch: bool = False) -> None:
    """Train the Talker once the codes are there."""
    wait_for(work.file(CODES_FILE), "run the step 'voicebox' first", watch)
    TalkerTraining(work, plan, device).run()
