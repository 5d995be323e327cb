"""Fitting one matrix: a closed-form start, then gradient steps through the frozen Talker; the best one stays.

The loss is a cross-entropy: with the Talker's own distribution under the reference's states, known in full at every
step, where the Talker is its own teacher; with the codes of real speech where a training made them.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from voicechat.models.embedded.talker import EOS, VOCABULARY, TalkerNet, project_hidden
from voicechat.train.common import Budget, Loop, Work
from voicechat.train.generate import Prompt, condition_table
from voicechat.train.projection_data import Spoken

logger = logging.getLogger("voicechat.train")

RIDGES = (1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Weights of the penalty that the closed-form start tries, in parts of the states' mean square."""


@dataclass(frozen=True, slots=True)
class FitPlan:
    """Budget of the gradient steps. ``batch_steps``: steps of speech in one batch; ``report``: steps between looks."""

    steps: int = 240
    seconds: float | None = None
    rate: float = 3e-4
    warm_up: int = 10
    batch_steps: int = 2_000
    report: int = 20
    weight_decay: float = 0.01


@dataclass(frozen=True, slots=True)
class Batch:
    """Some replies side by side, padded: [B, T] each, ``plain`` [B, T, width] without, ``teacher`` with hidden states.

    ``states`` [tokens of all, H]; ``place`` [B, T]: the state under each step's pointer. ``teacher`` is None where the
    targets are codes of real speech.
    """

    plain: Tensor
    inputs: Tensor
    targets: Tensor
    inside: Tensor
    states: Tensor
    place: Tensor
    teacher: Tensor | None


def split(items: Sequence[Spoken], seed: int = 0) -> tuple[list[Spoken], list[Spoken], list[Spoken]]:
    """Replies to learn from, to choose by and to report on: three quarters and two eighths (at least one each).

    A text that several voices speak is in one part only.
    """
    texts = list(dict.fromkeys(item.text for item in items))
    random.Random(seed).shuffle(texts)
    part = max(1, len(texts) // 8)
    cuts = (texts[2 * part :], texts[part : 2 * part], texts[:part])
    learnt, chosen, reported = ([item for item in items if item.text in set(cut)] for cut in cuts)
    return learnt, chosen, reported


class ProjectionFit:
    """The frozen Talker, the replies and the matrix. ``distilled``: the Talker's own reading is the target."""

    def __init__(self, net: TalkerNet, items: Sequence[Spoken], device: torch.device) -> None:
        self.net = net.to(device).eval().requires_grad_(False)
        self.device = device
        self.distilled = items[0].reference is not None
        self.train, self.chosen_by, self.reported = split(items)
        hidden = int(items[0].states.shape[1])
        self.matrix = self._new_matrix(hidden)
        self.best = self._new_matrix(hidden)
        self.best_loss = math.inf
        self._teachers: dict[int, Tensor] = {}

    def _new_matrix(self, hidden: int) -> nn.Linear:
        matrix = nn.Linear(hidden, self.net.config.width, bias=False, device=self.device)
        nn.init.zeros_(matrix.weight)
        return matrix

    # ---- loss

    def loss(self, batch: Batch, states: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy and agreement of the likeliest code, mean over the steps; final ``states`` [B, T, width]."""
        inside = batch.inside.flatten().float()
        flat = states.flatten(0, 1)
        if batch.teacher is None:
            losses, right = self.net.loss(flat, batch.targets.flatten())
        else:
            losses, right = soft_cross_entropy(self.net, flat, batch.teacher.flatten(0, 1))
        return (losses * inside).sum() / inside.sum(), (right * inside).sum() / inside.sum()

    def read(self, batch: Batch, matrix: nn.Linear | None) -> Tensor:
        """Final states of the Talker with the Thinker's states through ``matrix``, or without any."""
        rows = self.net.embed(batch.inputs) + batch.plain
        if matrix is not None:
            rows = rows + project_hidden(matrix, batch.states)[batch.place]
        states: Tensor = self.net(rows)
        return states

    @torch.inference_mode()
    def measure(self, items: Sequence[Spoken], matrix: nn.Linear | None) -> tuple[float, float]:
        """Cross-entropy in nats a step and agreement of the likeliest code over whole replies."""
        sums = torch.zeros(3)
        for part in batches(items, 4_000, None):
            batch = self.batch(part)
            loss, right = self.loss(batch, self.read(batch, matrix))
            count = float(batch.inside.sum())
            sums += torch.tensor([loss.item() * count, right.item() * count, count])
        return float(sums[0] / sums[2]), float(sums[1] / sums[2])

    @torch.inference_mode()
    def measure_reference(self, items: Sequence[Spoken]) -> float:
        """The same with the reference's own states and matrix: where the Talker teaches itself, nothing can be less."""
        total = count = 0.0
        for item in items:
            batch = self.batch([item])
            assert batch.teacher is not None
            total += self.loss(batch, batch.teacher)[0].item() * len(item.rows)
            count += len(item.rows)
        return total / count

    # ---- data

    def batch(self, items: Sequence[Spoken]) -> Batch:
        """Replies side by side."""
        device, plain, place, states, offset = self.device, [], [], [], 0
        for item in items:
            table = condition_table(self.net, Prompt(item.symbols, voice=item.voice))
            plain.append(table[item.rows.to(device)])
            place.append(item.tokens[item.rows] + offset)
            states.append(item.states)
            offset += len(item.states)
        lengths = torch.tensor([len(item.rows) for item in items])
        teacher = None
        if self.distilled:
            teacher = pad_sequence([self._teacher(item) for item in items], batch_first=True).float()
        return Batch(
            plain=pad_sequence(plain, batch_first=True),
            inputs=pad_sequence([item.inputs for item in items], batch_first=True).to(device),
            targets=pad_sequence([item.targets for item in items], batch_first=True).to(device),
            inside=(torch.arange(int(lengths.max())) < lengths[:, None]).to(device),
            states=torch.cat(states).to(device),
            place=pad_sequence(place, batch_first=True).to(device),
            teacher=teacher,
        )

    def _teacher(self, item: Spoken) -> Tensor:
        """The Talker's final states with the reference's hidden states, [T, width]; computed once."""
        if id(item) not in self._teachers:
            assert item.reference is not None
            with torch.inference_mode():
                rows = self.net.embed(item.inputs.to(self.device))
                rows = rows + item.reference[item.rows].to(self.device)
                self._teachers[id(item)] = self.net(rows[None])[0].half()
        return self._teachers[id(item)].clone()

    # ---- fitting

    def start(self) -> None:
        """Begin at the matrix that brings the new Thinker's rows nearest to the reference's (ridge regression).

        At zero where there is no reference.
        """
        self.best_loss = self.measure(self.chosen_by, None)[0]  # no hidden states at all: what a matrix has to beat
        if not self.distilled:
            return
        known, wanted = self._regression(self.train)
        test_known, test_wanted = self._regression(self.chosen_by)
        square, cross = known.T @ known, known.T @ wanted
        scale = float(square.diagonal().mean())
        tried = []
        for ridge in RIDGES:
            solved = torch.linalg.solve(square + ridge * scale * torch.eye(len(square), device=self.device), cross)
            tried.append((float(F.mse_loss(test_known @ solved, test_wanted)), ridge, solved))
        error, ridge, solved = min(tried, key=lambda one: one[0])
        share = error / max(float(test_wanted.square().mean()), 1e-12)
        logger.info("projection: start by ridge %g, %.0f %% of the reference's rows unexplained", ridge, 100 * share)
        with torch.no_grad():
            self.matrix.weight.copy_(solved.T)
        self._keep(self.measure(self.chosen_by, self.matrix)[0])

    def _regression(self, items: Sequence[Spoken]) -> tuple[Tensor, Tensor]:
        """Normalised states [rows, H] and what the reference adds to these rows [rows, width]."""
        known, wanted = [], []
        for item in items:
            states = item.states[item.tokens].to(self.device).float()
            known.append(F.layer_norm(states, states.shape[-1:]))
            assert item.reference is not None
            plain = condition_table(self.net, Prompt(item.symbols, voice=item.voice))
            wanted.append(item.reference.to(self.device) - plain)
        return torch.cat(known), torch.cat(wanted)

    def _keep(self, loss: float) -> None:
        """Remember the matrix as it is if it is the best so far on the replies that choose."""
        if loss < self.best_loss:
            self.best_loss = loss
            self.best.load_state_dict(self.matrix.state_dict())

    def run(self, work: Work, plan: FitPlan) -> None:
        """Take the gradient steps; resumes from its checkpoint."""
        optimizer = torch.optim.AdamW(self.matrix.parameters(), plan.rate, weight_decay=plan.weight_decay)
        parts = {"matrix": self.matrix, "best": self.best, "optimizer": optimizer}
        budget = Budget(plan.steps, plan.seconds)
        loop = Loop(work, "projection", work.file("training.pt"), parts, budget, plan.report, self.device)
        if loop.resumed:
            self.best_loss = self.measure(self.chosen_by, self.best)[0]
        else:
            self.start()
        rng = random.Random(budget.step)
        order: list[list[Spoken]] = []
        for number in loop.steps():
            order = order or list(batches(self.train, plan.batch_steps, rng))
            batch = self.batch(order.pop())
            for group in optimizer.param_groups:
                group["lr"] = plan.rate * budget.rate(plan.warm_up)
            loss, agreed = self.loss(batch, self.read(batch, self.matrix))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loop.recent.add(torch.stack((loss.detach(), agreed.detach())))
            if number % plan.report == plan.report - 1:
                self._report(loop)
                loop.save()
        self._report(loop)
        loop.finish()

    def _report(self, loop: Loop) -> None:
        """Look at the replies that choose, if there were steps since the last look."""
        if mean := loop.recent.take():
            held = self.measure(self.chosen_by, self.matrix)[0]
            self._keep(held)
            loop.curve.add(loop.budget, loss=mean[0], agreement=mean[1], held_out=held, best=self.best_loss)


def batches(items: Sequence[Spoken], most_steps: int, rng: random.Random | None) -> Iterator[list[Spoken]]:
    """Replies of like length together, at most ``most_steps`` steps with padding; shuffled by ``rng``."""
    ordered = sorted(items, key=lambda item: len(item.rows) * (1 if rng is None else 1 + 0.1 * rng.random()))
    parts: list[list[Spoken]] = [[]]
    for item in ordered:
        if parts[-1] and (len(parts[-1]) + 1) * len(item.rows) > most_steps:
            parts.append([])
        parts[-1].append(item)
    if rng is not None:
        rng.shuffle(parts)
    yield from parts


def soft_cross_entropy(net: TalkerNet, states: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of all tokens' probabilities under ``teacher``'s, and whether the likeliest code is the same.

    Final states [N, width] of both. Codes and advances are independent given that a token carries both, so no table of
    all tokens is needed.
    """
    code, advance, special = (part.float() for part in net.factors(states))
    with torch.no_grad():
        their_code, their_advance, their_special = (part.float() for part in net.factors(teacher))
        weights = _kinds(their_code, their_advance, their_special).softmax(-1)
        code_share, advance_share = their_code.softmax(-1), their_advance.softmax(-1)
    kinds = _kinds(code, advance, special).log_softmax(-1)
    inner = (code_share * code.log_softmax(-1)).sum(-1) + (advance_share * advance.log_softmax(-1)).sum(-1)
    losses = -(weights * kinds).sum(-1) - weights[:, 0] * inner
    unused = VOCABULARY - EOS - 1
    losses = losses + weights[:, 3] * math.log(unused)
    return losses, code.argmax(-1) == their_code.argmax(-1)


def _kinds(code: Tensor, advance: Tensor, special: Tensor) -> Tensor:
    """Logits of what kind a token is, [N, 4]: speech, start, end, unused."""
    speech = code.logsumexp(-1) + advance.logsumexp(-1)
    return torch.stack((speech, special[:, 0], special[:, 1], special[:, 2] + math.log(VOCABULARY - EOS - 1)), -1)
