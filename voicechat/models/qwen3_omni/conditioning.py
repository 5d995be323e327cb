"""Inside the Talker's worker: what each step's input is, and the further codes of each frame.

A position of the prompt is what its text row says; one behind it is the sum of the embeddings of its frame's codes and
of what the text row of the same number says, or padding where the text is over. All of it stays on the device: the
processor sends new text rows, and which position of which slot each token of the batch is.

A frame's further codes are made right after its first one was drawn, and kept by frame, so that a request that was
preempted finds them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.family import Embed, Entry, HiddenRows, TalkerInside
from voicechat.models.graphs import Captured, batch_sizes, capture, fitting
from voicechat.models.qwen3_omni.utterance import COLUMNS, SENSED, TOKEN

_PROMPT, _DELTA, _DRAW, _GENERATION, _SEED = range(5)


class Qwen3Conditioning:
    """See :class:`voicechat.contract.family.Conditioning`."""

    def __init__(self, inside: TalkerInside) -> None:
        self._inside, self._model, self._device = inside, inside.model, inside.device
        spec = inside.pool.spec
        lines = spec.slots + 1  # the last line is nobody's: padding and requests without a slot use it
        self._nobody = spec.slots
        groups = self._model.code_predictor.config.num_code_groups - 1

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        self._rows = zeros(lines, spec.max_text_rows, COLUMNS, dtype=torch.int32)
        self._ready = zeros(lines)
        self._facts = zeros(lines, 5)
        self._codes = zeros(lines, max(spec.max_steps, 1) + 1, groups, dtype=torch.int16)
        self._sent = np.zeros(spec.slots, np.int64)
        self._hidden: HiddenRows | None = None if inside.on_host else inside.open_rows()
        self._pad = self._model.facts["tts_pad"]
        self._step_graphs: dict[int, Any] = {}
        self._frame_graphs: dict[int, tuple[tuple[Tensor, ...], Captured[Tensor]]] = {}

    # ---- what the processor sends

    @torch.inference_mode()
    def begin(self, slot: int, generation: int, facts: Mapping[str, int]) -> None:
        """See the interface."""
        line = np.array(
            [facts["prompt"], facts["delta"], facts["draw"], generation, facts.get("seed", generation)], np.int64
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
        self._apply(self._send(plan), ids[:count], embeddings[:count], sensed=not single)

    def _apply(self, plan: Tensor, ids: Tensor, embeddings: Tensor, *, sensed: bool) -> None:
        model = self._model
        line, place = plan.unbind(0)
        facts = self._facts.index_select(0, line)
        prompt = facts[:, _PROMPT]
        there = place < self._ready.index_select(0, line)
        found = self._rows[line, torch.where(there, place, 0).clamp(max=self._rows.shape[1] - 1)].long()
        kind = torch.where(there, found[:, 0], TOKEN)
        value = torch.where(there, found[:, 1], self._pad)
        hidden = self._gather(line, value, facts[:, _GENERATION], kind <= SENSED).to(embeddings.dtype)
        named = model.text_table.index_select(0, torch.where(kind == TOKEN, value, 0))
        hidden = torch.where((kind == TOKEN)[:, None], named, hidden)
        made = model.text_projection(hidden)
        if sensed:
            made = torch.where((kind == SENSED)[:, None], model.hidden_projection(hidden), made)
        behind = place >= prompt
        code = torch.where(behind, ids, found[:, 2])
        coded = model.embed_input_ids(code.clamp(min=0))
        frame = (place - prompt).clamp(0, self._codes.shape[1] - 1)
        further = model.code_predictor.embed(self._codes[line, frame].long())
        coded = torch.where(behind[:, None], coded + further, coded)
        made = made + torch.where((code >= 0)[:, None], coded, 0)
        embeddings.copy_(torch.where((line < self._nobody)[:, None], made, embeddings))
        turned = torch.where(behind, place + facts[:, _DELTA], found[:, 3:].T)
        model.rope_positions[:, : len(ids)].copy_(turned)

    def _gather(self, line: Tensor, row: Tensor, generation: Tensor, wanted: Tensor) -> Tensor:
        """Hidden rows ``[n, width]``; anything where they are not wanted."""
        pool = self._inside.pool
        wanted = wanted & (line < self._nobody)
        if self._hidden is not None:
            made: Tensor = self._hidden.gather(line.clamp(max=self._nobody - 1), row, generation, wanted)[0]
            return made
        slots, numbers = torch.where(wanted, line, 0).numpy(), torch.where(wanted, row, 0).numpy()
        return torch.from_numpy(pool.read_hidden(slots, numbers)).view(torch.bfloat16)

    # ---- after a step

    @torch.inference_mode()
    def sampled(self, entries: Sequence[Entry], tokens: Tensor, hidden: Tensor) -> Tensor:
        """See the interface: the further codes, 16 bits each."""
        count = len(entries)
        plan = np.array(
            [[self._nobody if e.slot is None else e.slot for e in entries], [e.start + e.count for e in entries]],
            np.int64,
        )
        size = fitting(list(self._frame_graphs), count)
        if not size:
            return self._frame(self._send(plan), tokens, hidden)
        (fixed_plan, fixed_tokens, fixed_hidden), (graph, made) = self._frame_graphs[size]
        fixed_plan[:, :count].copy_(self._send(plan), non_blocking=True)
        fixed_plan[0, count:] = self._nobody
        fixed_tokens[:count].copy_(tokens)
        fixed_hidden[:count].copy_(hidden)
        graph.replay()
        return made[:count]

    def _frame(self, plan: Tensor, tokens: Tensor, hidden: Tensor) -> Tensor:
        model = self._model
        line, end = plan.unbind(0)
        facts = self._facts.index_select(0, line)
        frame = end - facts[:, _PROMPT]
        first = model.embed_input_ids(tokens)
        codes = model.code_predictor(
            hidden.to(first.dtype), first, facts[:, _SEED], frame, facts[:, _DRAW].bool() & (frame >= 0)
        )
        kept = codes.to(torch.int16)
        spare = self._codes.shape[1] - 1
        self._codes[line, torch.where((frame >= 0) & (frame < spare), frame, spare)] = kept
        return kept.view(torch.uint8)

    # ---- CUDA graphs

    @torch.inference_mode()
    def capture(self, most: int, ids: Tensor, embeddings: Tensor, embed: Embed | None) -> None:
        """See the interface: one graph for the input of a step, one for a frame's codes, for each size of a batch."""
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        self._plan = torch.zeros(2, most, dtype=torch.long, device=self._device)
        self._plan[0] = self._nobody
        step_graphs, frame_graphs = {}, {}
        for size in reversed(batch_sizes(most)):
            inputs = self._plan[:, :size], ids[:size], embeddings[:size]
            step_graphs[size] = capture(partial(self._apply, *inputs, sensed=False), stream, pool).graph
            plan = torch.zeros(2, size, dtype=torch.long, device=self._device)
            plan[0] = self._nobody
            tokens = torch.zeros(size, dtype=ids.dtype, device=self._device)
            fixed = plan, tokens, torch.zeros_like(embeddings[:size])
            frame_graphs[size] = fixed, capture(partial(self._frame, *fixed), stream, pool)
        self._step_graphs = dict(reversed(step_graphs.items()))
        self._frame_graphs = dict(reversed(frame_graphs.items()))
