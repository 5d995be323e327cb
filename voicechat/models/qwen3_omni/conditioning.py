"""Inside the Talker's worker: what each step's input is, and the further codes of each frame.

The input of a position is the sum of the embeddings of its frame's codes and of the projected text row. A frame's
further codes are made right after its first one was drawn, and kept by frame, so that a request that was preempted
finds them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from voicechat.contract.family import Embed, Entry, TalkerInside
from voicechat.models.graphs import Captured, batch_sizes, capture, fitting
from voicechat.models.qwen_common.conditioning import DRAW, PROMPT, SEED, Positions, RowConditioning
from voicechat.models.qwen_common.utterance import SENSED


class Qwen3Conditioning(RowConditioning):
    """See :class:`voicechat.contract.family.Conditioning`."""

    def __init__(self, inside: TalkerInside) -> None:
        super().__init__(inside)
        spec = inside.pool.spec
        groups = self._model.code_predictor.config.num_code_groups - 1
        self._codes = self._zeros(spec.slots + 1, max(spec.max_steps, 1) + 1, groups, dtype=torch.int16)
        self._frame_graphs: dict[int, tuple[tuple[Tensor, ...], Captured[Tensor]]] = {}

    def _made(self, at: Positions, codes: Tensor, hidden: Tensor, *, single: bool) -> Tensor:
        model = self._model
        made: Tensor = model.text_projection(hidden)
        if not single:
            made = torch.where((at.kind == SENSED)[:, None], model.hidden_projection(hidden), made)
        coded = model.embed_input_ids(codes.clamp(min=0))
        frame = (at.place - at.facts[:, PROMPT]).clamp(0, self._codes.shape[1] - 1)
        further = model.code_predictor.embed(self._codes[at.line, frame].long())
        coded = torch.where(at.behind[:, None], coded + further, coded)
        return made + torch.where((codes >= 0)[:, None], coded, 0)

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
        frame = end - facts[:, PROMPT]
        first = model.embed_input_ids(tokens)
        codes = model.code_predictor(
            hidden.to(first.dtype), first, facts[:, SEED], frame, facts[:, DRAW].bool() & (frame >= 0)
        )
        kept = codes.to(torch.int16)
        spare = self._codes.shape[1] - 1
        self._codes[line, torch.where((frame >= 0) & (frame < spare), frame, spare)] = kept
        return kept.view(torch.uint8)

    # ---- CUDA graphs

    @torch.inference_mode()
    def capture(self, most: int, ids: Tensor, embeddings: Tensor, embed: Embed | None) -> None:
        """See the interface: besides the graphs of steps, one for a frame's codes, for each size of a batch."""
        super().capture(most, ids, embeddings, embed)
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self._device)
        frame_graphs = {}
        for size in reversed(batch_sizes(most)):
            plan = self._zeros(2, size)
            plan[0] = self._nobody
            tokens = torch.zeros(size, dtype=ids.dtype, device=self._device)
            fixed = plan, tokens, torch.zeros_like(embeddings[:size])
            frame_graphs[size] = fixed, capture(partial(self._frame, *fixed), stream, pool)
        self._frame_graphs = dict(reversed(frame_graphs.items()))
