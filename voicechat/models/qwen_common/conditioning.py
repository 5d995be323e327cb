"""Inside the Talkers' workers: what each step's input is, as far as the Qwen-Omni families agree about it.

A position of the prompt is what its text row says; one behind it is the codes of its step and what the text row of the
same number says, or padding where the text is over. All of it stays on the device: the processor sends new text rows,
and which position of which slot each token of the batch is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.family import Embed, Entry, HiddenRows, TalkerInside
from voicechat.models.graphs import batch_sizes, capture, fitting
from voicechat.models.qwen_common.utterance import COLUMNS, SENSED, TOKEN

PROMPT, DELTA, DRAW, GENERATION, SEED = range(5)
"""What is kept of a request, by column."""


class Positions:
    """What the text rows say of the positions of a step: ``[n]`` each, but ``turned`` [3, n]."""

    def __init__(self, line: Tensor, place: Tensor, facts: Tensor, found: Tensor, kind: Tensor, value: Tensor) -> None:
        self.line, self.place, self.facts, self.found, self.kind, self.value = line, place, facts, found, kind, value
        self.behind = place >= facts[:, PROMPT]
        """Behind the prompt: the engine's ids are codes there."""

    def codes(self, ids: Tensor) -> Tensor:
        """The code of each position; -1 where there is none."""
        return torch.where(self.behind, ids, self.found[:, 2])

    @property
    def turned(self) -> Tensor:
        """Places in time, height and width."""
        return torch.where(self.behind, self.place + self.facts[:, DELTA], self.found[:, 3:].T)


class RowConditioning(ABC):
    """See :class:`voicechat.contract.family.Conditioning`. The model has ``text_table`` and ``rope_positions``."""

    def __init__(self, inside: TalkerInside) -> None:
        self._inside, self._model, self._device = inside, inside.model, inside.device
        spec = inside.pool.spec
        lines = spec.slots + 1  # the last line is nobody's: padding and requests without a slot use it
        self._nobody = spec.slots
        self._rows = self._zeros(lines, spec.max_text_rows, COLUMNS, dtype=torch.int32)
        self._ready = self._zeros(lines)
        self._facts = self._zeros(lines, 5)
        self._sent = np.zeros(spec.slots, np.int64)
        self._hidden: HiddenRows | None = None if inside.on_host else inside.open_rows()
        self._pad = self._model.facts["tts_pad"]
        self._step_graphs: dict[int, Any] = {}

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    @abstractmethod
    def _made(self, at: Positions, codes: Tensor, hidden: Tensor, *, single: bool) -> Tensor:
        """Input embeddings ``[n, width]`` of positions; ``hidden`` are the Thinker's rows or embeddings ``[n, …]``.

        ``single``: all positions are behind their prompts.
        """

    # ---- what the processor sends

    @torch.inference_mode()
    def begin(self, slot: int, generation: int, facts: Mapping[str, int]) -> None:
        """See the interface."""
        line = np.array(
            [facts["prompt"], facts["delta"], facts.get("draw", 0), generation, facts.get("seed", generation)], np.int64
        )
        self._facts[slot].copy_(self._send(line), non_blocking=True)
        self._sent[slot] = 0
        if self._hidden is not None:
            self._hidden.begin(slot)

    def _send(self, array: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _send_rows(self, slots: Sequence[int]) -> None:
        """Send the text rows that came since the last time."""
        pool = self._inside.pool
        for slot in slots:
            start, end = int(self._sent[slot]), int(pool.text_ready[slot])
            if start == end:
                continue
            rows = pool.text[slot, start:end].copy()
            named = rows[rows[:, 0] <= SENSED, 1]
            if self._hidden is not None and len(named):
                self._hidden.bring(slot, int(named.max()) + 1)
            self._rows[slot, start:end].copy_(self._send(rows), non_blocking=True)
            self._ready[slot] = end
            self._sent[slot] = end

    # ---- a step

    @torch.inference_mode()
    def step(self, entries: Sequence[Entry], ids: Tensor, embeddings: Tensor, embed: Embed | None) -> None:
        """See the interface."""
        self._send_rows([entry.slot for entry in entries if entry.slot is not None])
        count = sum(entry.count for entry in entries)
        plan = np.empty((2, count), np.int64)
        at = 0
        for entry in entries:
            plan[0, at : at + entry.count] = self._nobody if entry.slot is None else entry.slot
            plan[1, at : at + entry.count] = np.arange(entry.start, entry.start + entry.count)
            at += entry.count
        single = count == len(entries) and all(entry.start > 0 for entry in entries)
        size = fitting(list(self._step_graphs), count) if single else 0
        if size:
            self._plan[:, :count].copy_(self._send(plan), non_blocking=True)
            if count < size:
                self._plan[0, count:size] = self._nobody
            self._step_graphs[size].replay()
            return
        self._apply(self._send(plan), ids[:count], embeddings[:count], single=single)

    def _apply(self, plan: Tensor, ids: Tensor, embeddings: Tensor, *, single: bool) -> None:
        model = self._model
        line, place = plan.unbind(0)
        facts = self._facts.index_select(0, line)
        there = place < self._ready.index_select(0, line)
        found = self._rows[line, torch.where(there, place, 0).clamp(max=self._rows.shape[1] - 1)].long()
        kind = torch.where(there, found[:, 0], TOKEN)
        value = torch.where(there, found[:, 1], self._pad)
        at = Positions(line, place, facts, found, kind, value)
        hidden = self._gather(line, value, facts[:, GENERATION], kind <= SENSED).to(embeddings.dtype)
        named = model.text_table.index_select(0, torch.where(kind == TOKEN, value, 0))
        hidden = torch.where((kind == TOKEN)[:, None], named, hidden)
        made = self._made(at, at.codes(ids), hidden, single=single)
        embeddings.copy_(torch.where((line < self._nobody)[:, None], made, embeddings))
        model.rope_positions[:, : len(ids)].copy_(at.turned)

    def _gather(self, line: Tensor, row: Tensor, generation: Tensor, wanted: Tensor) -> Tensor:
        """Hidden rows ``[n, width]``; anything where they are not wanted."""
        pool = self._inside.pool
        wanted = wanted & (line < self._nobody)
        if self._hidden is not None:
            made: Tensor = self._hidden.gather(line.clamp(max=self._nobody - 1), row, generation, wanted)[0]
            return made
        slots, numbers = torch.where(wanted, line, 0).numpy(), torch.where(wanted, row, 0).numpy()
        return torch.from_numpy(pool.read_hidden(slots, numbers)).view(torch.bfloat16)

    def sampled(self, entries: Sequence[Entry], tokens: Tensor, hidden: Tensor) -> Tensor | None:
        """See the interface: nothing is added where a step is one code."""
        return None

    # ---- CUDA graphs

    @torch.inference_mode()
    def capture(self, most: int, ids: Tensor, embeddings: Tensor, embed: Embed | None) -> None:
        """See the interface: a graph for the input of a step, for each size of a batch."""
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        self._plan = self._zeros(2, most)
        self._plan[0] = self._nobody
        step_graphs = {}
        for size in reversed(batch_sizes(most)):
            inputs = self._plan[:, :size], ids[:size], embeddings[:size]
            step_graphs[size] = capture(partial(self._apply, *inputs, single=True), stream, pool).graph
        self._step_graphs = dict(reversed(step_graphs.items()))
