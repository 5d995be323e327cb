"""The Talker's hooks into vLLM: each step's input is the last speech token plus the text row that the Talker stands on.

A speech token says a code and how far the pointer into the text rows moves, so the pointer of every position follows
from the token ids alone. :class:`GatedScheduler` holds a request whose next step would look at rows that are not there
yet; :class:`TalkerWorker` adds the rows to the input embeddings, in place, before the forward pass.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from voicechat.models.embedded.talker import ADVANCES, BOS, LEFT, NONE_SYMBOL, RIGHT, Conditioner
from voicechat.stages.bookkeeping import CONFIG_KEY, acknowledge, open_pool, request_facts, spans
from voicechat.stages.host import die_with_parent
from voicechat.stages.thinker_engine import AckScheduler
from voicechat.stages.worker import Worker

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

HELD_WAIT = 0.004
"""Seconds that a wholly held engine sleeps at most before it looks for new requests again."""


def wake_address(pool_name: str) -> str:
    """Abstract socket address at which a held Talker engine listens for 'new rows'."""
    return f"\0{pool_name}-talker"


def pointer_moves(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many rows each token moves the pointer on: 0 for ids that carry no code."""
    return np.where(tokens < BOS, tokens % ADVANCES, 0)


class GatedScheduler(AckScheduler):
    """Sets aside running requests whose next rows are not ready; sleeps, and can be woken, if that is all of them."""

    lane = "talker_ack"
    running: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pointers: dict[str, tuple[int, int]] = {}
        self._wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._wake.bind(wake_address(self.pool.spec.name))

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        held = [request for request in self.running if not self._may_step(request)]
        if not held:
            return super().schedule(*args, **kwargs)
        if len(held) == len(self.running) and not self.waiting and not self.finished_req_ids:
            self._sleep()
            held = [request for request in self.running if not self._may_step(request)]
        away = set(map(id, held))
        self.running = [request for request in self.running if id(request) not in away]
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.running[0:0] = held  # in front: first come, first served

    def _sleep(self) -> None:
        self._wake.settimeout(HELD_WAIT)
        try:
            self._wake.recv(64)
            self._wake.setblocking(False)
            while self._wake.recv(64):
                pass
        except (TimeoutError, BlockingIOError):
            pass

    def _may_step(self, request: Any) -> bool:
        facts = request_facts(request.sampling_params)
        if facts is None:
            return True
        slot = facts["slot"]
        if self.pool.symbols_final[slot]:
            return True
        known, pointer = self._pointers.get(request.request_id, (0, facts["pointer"]))
        tokens = request.all_token_ids
        if known < len(tokens):
            pointer += int(pointer_moves(np.fromiter(tokens[known:], np.int64)).sum())
            self._pointers[request.request_id] = (len(tokens), pointer)
        return int(self.pool.symbols_ready[slot]) > pointer + RIGHT

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._pointers.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


class _Row:
    """One request inside the worker: its slot, voice, and the pointer at the position that it has been advanced to."""

    __slots__ = ("ack", "base", "pointer", "position", "slot", "voice")

    def __init__(self, facts: dict[str, Any]) -> None:
        self.slot: int = facts["slot"]
        self.ack: int = facts["ack"]
        self.voice: int = facts["voice"]
        self.base: int = facts["pointer"]
        self.position = 0
        self.pointer = self.base


class TalkerWorker(Worker):
    """Adds the text rows to the input embeddings, for all requests of a step at once."""

    def init_device(self) -> None:
        die_with_parent()
        super().init_device()
        facts = self.vllm_config.additional_config[CONFIG_KEY]
        self._pool = open_pool(self.vllm_config)
        self._conditioner = Conditioner.from_weights(facts["weights"], facts["thinker"], facts.get("projection"))
        self._rows: dict[str, _Row] = {}
        self._output: SchedulerOutput | None = None
        self._window = np.arange(-LEFT, RIGHT + 1)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        runner = self.model_runner
        if hasattr(runner, "_model_forward"):
            forward = runner._model_forward

            def conditioned(
                input_ids: Any = None,
                positions: Any = None,
                intermediate_tensors: Any = None,
                inputs_embeds: Any = None,
                **kwargs: Any,
            ) -> Any:
                if self._output is not None:
                    self._condition(list(runner.input_batch.req_ids), inputs_embeds)
                return forward(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)

            runner._model_forward = conditioned
        else:
            raise RuntimeError("this vLLM's model runner has no _model_forward to hook into")

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            if (facts := request_facts(request.sampling_params)) is not None:
                self._rows[request.req_id] = _Row(facts)
        for request_id in scheduler_output.finished_req_ids:
            if (row := self._rows.pop(request_id, None)) is not None:
                acknowledge(self._pool.talker_ack, row.slot, row.ack)
        self._output = scheduler_output if scheduler_output.total_num_scheduled_tokens and self._rows else None
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._output = None

    @torch.inference_mode()
    def _condition(self, request_ids: list[str], embeddings: torch.Tensor) -> None:
        assert self._output is not None
        where: list[int] = []
        slots: list[int] = []
        voices: list[int] = []
        pointers: list[int] = []
        bases: list[int] = []
        for index, span in enumerate(spans(request_ids, self._output)):
            row = self._rows.get(span.request_id)
            if row is None:
                continue
            steps = self._advance(row, index, span.start, span.count)
            where.extend(range(span.offset, span.offset + span.count))
            slots.extend([row.slot] * span.count)
            voices.extend([row.voice] * span.count)
            pointers.extend(steps)
            bases.extend([row.base] * span.count)
        if not where:
            return
        symbols, hidden, has_hidden = self._gather(np.array(slots), np.array(pointers), np.array(bases))
        added = self._conditioner(symbols, hidden, has_hidden, torch.tensor(voices))
        embeddings[torch.tensor(where)] += added.to(embeddings.dtype)

    def _advance(self, row: _Row, index: int, start: int, count: int) -> list[int]:
        """Pointers of positions ``start`` … ``start + count - 1``; recomputed from the ids after a preemption."""
        if start != row.position:
            row.position, row.pointer = 0, row.base
        ids = self.model_runner.input_batch.token_ids_cpu[index, row.position : start + count]
        walked = row.pointer + np.cumsum(pointer_moves(np.asarray(ids, np.int64)))
        row.position, row.pointer = start + count, int(walked[-1])
        return [int(pointer) for pointer in walked[-count:]]

    def _gather(
        self, slots: npt.NDArray[np.int64], pointers: npt.NDArray[np.int64], bases: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each pointer: its window of symbols ``[n, LEFT+1+RIGHT]``, hidden row ``[n, hidden]``, if it has one."""
        pool = self._pool
        ready = pool.symbols_ready[slots]
        last = np.maximum(ready - 1, 0)
        places = pointers[:, None] + self._window
        inside = (places >= bases[:, None]) & (places < ready[:, None])
        clipped = np.clip(places, 0, last[:, None])
        symbols = np.where(inside, pool.symbols[slots[:, None], clipped, 0], NONE_SYMBOL)
        tokens = pool.symbols[slots, np.minimum(pointers, last), 1].astype(np.int64)
        has_hidden = tokens >= 0
        started = time.monotonic_ns()
        rows = torch.from_numpy(pool.hidden[slots, np.maximum(tokens, 0)]).view(torch.bfloat16)
        pool.counters[2] += len(slots)
        pool.counters[3] += time.monotonic_ns() - started
        return torch.from_numpy(symbols.astype(np.int64)), rows.float(), torch.from_numpy(has_hidden)
