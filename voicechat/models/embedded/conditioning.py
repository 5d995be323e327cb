"""The Talker's conditioning on the device: nothing of it waits for a token to reach the processor.

With asynchronous scheduling a step starts before the token that it consumes is known to the processor, so the pointers
into the text live on the device and move by the tokens there. The processor sends only what it knows ahead: which rows
of the batch belong to which slot, and the symbols that came since the last step. On CUDA the whole of it is one
captured graph for each size of a batch of single tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.family import Embed, Entry, HiddenRows
from voicechat.contract.pool import Pool
from voicechat.models.device import to_device
from voicechat.models.embedded.talker import ADVANCES, BOS, LEFT, NONE_SYMBOL, RIGHT, Conditioner

_FACTS = 3
_WARM_UPS = 3


class DeviceConditioning:
    """State of every slot on the device, and the step that uses and moves it. ``rows`` None: text alone is read."""

    def __init__(self, pool: Pool, conditioner: Conditioner, rows: HiddenRows | None, device: torch.device) -> None:
        spec = pool.spec
        self._pool = pool
        self._spec = spec
        self._device = device
        self._conditioner = conditioner.to(device)
        self._rows = rows
        lines = spec.slots + 1  # the last line is nobody's: padding and requests without a slot use it
        self._pointer = torch.zeros(lines, dtype=torch.int64, device=device)
        self._ready = torch.zeros(lines, dtype=torch.int64, device=device)
        self._facts = torch.zeros(lines, _FACTS, dtype=torch.int64, device=device)  # base, voice, generation
        self._symbols = torch.zeros(lines * spec.max_text_rows, dtype=torch.int64, device=device)
        self._tokens = torch.full((lines * spec.max_text_rows,), -1, dtype=torch.int64, device=device)
        self._window = torch.arange(-LEFT, RIGHT + 1, device=device)
        self._copied = np.zeros(spec.slots, np.int64)
        self._plan = torch.zeros(0, dtype=torch.int64, device=device)
        self._graphs: dict[int, Any] = {}

    # ---- what the processor sends

    @torch.inference_mode()
    def begin(self, slot: int, generation: int, facts: Mapping[str, int]) -> None:
        """A request begins on ``slot``, at row ``pointer`` of the text."""
        line = to_device(np.array([[slot, facts["pointer"], facts["voice"], generation]], np.int64), self._device)
        self._facts.index_copy_(0, line[:, 0], line[:, 1:])
        self._copied[slot] = 0
        if self._rows is not None:
            self._rows.begin(slot)

    @torch.inference_mode()
    def send_text(self, slots: npt.NDArray[np.int64]) -> None:
        """Copy the symbols that were announced since the last time, of ``slots`` (each at most once)."""
        ready = self._pool.text_ready[slots]
        fresh = np.flatnonzero(ready > self._copied[slots])
        if not len(fresh):
            return
        parts = []
        for slot, end in zip(slots[fresh].tolist(), ready[fresh].tolist(), strict=True):
            start = int(self._copied[slot])
            part = np.empty((3, end - start), np.int64)
            part[0] = np.arange(start, end) + slot * self._spec.max_text_rows
            part[1:] = self._pool.text[slot, start:end].T
            parts.append(part)
            self._copied[slot] = end
        if self._rows is not None:
            for slot, part in zip(slots[fresh].tolist(), parts, strict=True):
                self._rows.bring(slot, int(part[2].max()) + 1)
        packed = to_device(np.concatenate(parts, axis=1), self._device)
        self._symbols.index_copy_(0, packed[0], packed[1])
        self._tokens.index_copy_(0, packed[0], packed[2])
        lines = to_device(np.stack((slots[fresh], ready[fresh])), self._device)
        self._ready.index_copy_(0, lines[0], lines[1])

    # ---- a step

    @torch.inference_mode()
    def step(self, entries: Sequence[Entry], ids: Tensor, embeddings: Tensor, embed: Embed | None = None) -> None:
        """Add each token's row to its input embedding, in place, and move the pointers on.

        ``ids`` int ``[>= n]`` and ``embeddings`` ``[>= n, width]`` are the engine's own buffers, ``n`` the tokens of
        ``entries`` in the batch's order. With ``embed`` the embeddings are made from the ids first.
        """
        plan = self._make_plan(entries)
        count = plan.shape[1]
        with_slot = [entry.slot for entry in entries if entry.slot is not None]
        self.send_text(np.array(with_slot, np.int64))
        size = self._graph_size(entries, count)
        if size:
            self._plan[:, :count].copy_(to_device(plan, self._device), non_blocking=True)
            if count < size:
                self._plan[0, count:size] = self._spec.slots
                self._plan[2:, count:size] = 0
            self._graphs[size].replay()
            return
        self._apply(to_device(plan, self._device), ids[:count], embeddings[:count], embed)

    def _make_plan(self, entries: Sequence[Entry]) -> npt.NDArray[np.int64]:
        """int64 ``[4, n]``: line, place of the span's first token, if it starts at position 0, if it is its last."""
        counts = np.fromiter((entry.count for entry in entries), np.int64, len(entries))
        ends = np.cumsum(counts)
        firsts = ends - counts
        plan = np.zeros((4, int(ends[-1])), np.int64)
        spare = self._spec.slots
        lines = np.fromiter((spare if e.slot is None else e.slot for e in entries), np.int64, len(entries))
        plan[0] = np.repeat(lines, counts)
        plan[1] = np.repeat(firsts, counts)
        plan[2] = np.repeat(np.fromiter((entry.start == 0 for entry in entries), np.int64, len(entries)), counts)
        plan[3, ends - 1] = 1
        return plan

    def _apply(self, plan: Tensor, ids: Tensor, embeddings: Tensor, embed: Embed | None) -> None:
        spec = self._spec
        line, first, fresh, last = plan.unbind(0)
        base, voice, generation = self._facts.index_select(0, line).unbind(1)
        tokens = ids.long()
        moves = torch.where(tokens < BOS, tokens % ADVANCES, 0)
        walked = moves.cumsum(0)
        before = walked.index_select(0, first) - moves.index_select(0, first)
        start = torch.where(fresh.bool(), base, self._pointer.index_select(0, line))
        pointer = start + walked - before
        self._pointer.scatter_(0, torch.where(last.bool(), line, spec.slots), pointer)

        ready = self._ready.index_select(0, line)
        end = (ready - 1).clamp(min=0)
        text = line * spec.max_text_rows
        places = pointer[:, None] + self._window
        inside = (places >= base[:, None]) & (places < ready[:, None])
        within = torch.minimum(places.clamp(min=0), end[:, None])
        symbols = torch.where(inside, self._symbols[text[:, None] + within], NONE_SYMBOL)
        row = self._tokens[text + torch.minimum(pointer, end).clamp(min=0)]
        named = (row >= 0) & (line < spec.slots)
        hidden, good = None, named
        if self._rows is not None:
            hidden, good = self._rows.gather(line, row, generation, named)
        added = self._conditioner(symbols, hidden, good, voice)
        if embed is not None:
            embeddings.copy_(embed(ids))
        embeddings += torch.where((line < spec.slots)[:, None], added, 0).to(embeddings.dtype)

    def sampled(self, entries: Sequence[Entry], tokens: Tensor, hidden: Tensor) -> None:
        """A token says all."""

    # ---- CUDA graphs

    def _graph_size(self, entries: Sequence[Entry], count: int) -> int:
        """Size of the graph that can take this batch; 0 if none can."""
        if count != len(entries):
            return 0
        return next((size for size in self._graphs if size >= count), 0)

    @torch.inference_mode()
    def capture(self, most: int, ids: Tensor, embeddings: Tensor, embed: Embed | None = None) -> None:
        """Capture batches of up to ``most`` single tokens over the engine's buffers, in doubling sizes."""
        sizes = [size for size in (1 << power for power in range(32)) if size < most] + [most]
        plan = np.zeros((4, most), np.int64)
        plan[0], plan[1] = self._spec.slots, np.arange(most)
        self._plan = to_device(plan, self._device)
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._apply(self._plan, ids[:most], embeddings[:most], embed)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        for size in sizes:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                self._apply(self._plan[:, :size], ids[:size], embeddings[:size], embed)
            self._graphs[size] = graph
