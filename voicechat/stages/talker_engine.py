"""The Talker's hooks into vLLM: each step's input is the last speech token plus the text row that the Talker stands on.

A speech token says a code and how far the pointer into the text rows moves, so the pointer of every position follows
from the token ids alone. :class:`GatedScheduler` holds a request whose next step would look at rows that are not there
yet; :class:`TalkerWorker` adds the rows to the input embeddings, in place, before the forward pass.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from voicechat.models.embedded.talker import ADVANCES, BOS, LEFT, NONE_SYMBOL, RIGHT, Conditioner
from voicechat.stages.bookkeeping import CONFIG_KEY, acknowledge, open_pool, request_facts, spans
from voicechat.stages.conditioning import DeviceConditioning, Entry
from voicechat.stages.host import die_with_parent
from voicechat.stages.profile import ProfiledWorker
from voicechat.stages.rows import ON_HOST, FaultReport, KeeperWatch, announced, open_rows
from voicechat.stages.runner import InputHook
from voicechat.stages.talker import WINDOWS
from voicechat.stages.thinker_engine import Acks
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


class Gate(Acks):
    """Sets aside running requests whose next rows are not ready; sleeps, and can be woken, if that is all of them.

    Where steps are scheduled ahead of their tokens, a request that has tokens on the way is taken to be as far on as it
    can be, and one that was set aside waits until none is on the way.
    """

    lane = "talker_ack"
    running: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pointers: dict[str, tuple[int, int]] = {}
        self._last: set[str] = set()
        self._wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._wake.bind(wake_address(self.pool.spec.name))

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        held = [request for request in self.running if not self._may_step(request)]
        if held and len(held) == len(self.running) and self._idle(held):
            self._sleep()
            held = [request for request in self.running if not self._may_step(request)]
        away = set(map(id, held))
        self.running = [request for request in self.running if id(request) not in away]
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.running[0:0] = held  # in front: first come, first served
        self._last = set(output.num_scheduled_tokens)
        return output

    def _idle(self, held: list[Any]) -> bool:
        """True if nothing but new rows or new requests can move this engine on."""
        on_the_way = any(request.num_output_placeholders for request in held)
        return not (on_the_way or self.waiting or self.finished_req_ids)  # type: ignore[attr-defined]

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
        on_the_way: int = request.num_output_placeholders
        if on_the_way and request.request_id not in self._last:
            return False
        slot = facts["slot"]
        if self.pool.symbols_final[slot]:
            return True
        known, pointer = self._pointers.get(request.request_id, (0, facts["pointer"]))
        tokens = request.all_token_ids
        if known < len(tokens):
            pointer += sum(token % ADVANCES for token in tokens[known:] if token < BOS)  # few: numpy would be slower
            self._pointers[request.request_id] = (len(tokens), pointer)
        return int(self.pool.symbols_ready[slot]) > pointer + on_the_way * (ADVANCES - 1) + RIGHT

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._pointers.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


class GatedScheduler(Gate, Scheduler):
    """For engines that know a step's tokens before they schedule the next."""


class AsyncGatedScheduler(Gate, AsyncScheduler):
    """For engines that schedule a step while the one before it runs."""


class _Row:
    """One request inside the worker: its slot, voice, and the pointer at the position that it has been advanced to."""

    __slots__ = ("ack", "base", "generation", "pointer", "position", "slot", "voice")

    def __init__(self, facts: dict[str, Any]) -> None:
        self.slot: int = facts["slot"]
        self.ack: int = facts["ack"]
        self.generation: int = facts["ack"] // WINDOWS
        self.voice: int = facts["voice"]
        self.base: int = facts["pointer"]
        self.position = 0
        self.pointer = self.base


class TalkerWorker(ProfiledWorker, Worker):
    """Adds the text rows to the input embeddings, for all requests of a step at once.

    The engine's facts say where: on the ``host``, by numpy, which suits a model on the CPU, or on the ``device``.
    """

    def init_device(self) -> None:
        die_with_parent()
        super().init_device()
        facts = self.vllm_config.additional_config[CONFIG_KEY]
        self._pool = open_pool(self.vllm_config)
        self._conditioner = Conditioner.from_weights(facts["weights"], facts["thinker"], facts["projection"])
        self._rows: dict[str, _Row] = {}
        self._output: SchedulerOutput | None = None
        self._window = np.arange(-LEFT, RIGHT + 1)
        self._watch: KeeperWatch | None = None
        self._on_device: DeviceConditioning | None = None
        if facts.get("conditioning") == "device":
            rows = None
            if self._conditioner.hidden is not None and announced(self._pool) != ON_HOST:
                rows = open_rows(self._pool, self.device)
                self._watch = KeeperWatch(self._pool)
            self._on_device = DeviceConditioning(self._pool, self._conditioner, rows, self.device)
            self._faults = FaultReport(self._pool, self._on_device.faults)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self._hook = InputHook(self.model_runner, lambda: self._output is not None, self._condition)

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()
        if self._on_device is not None and self.device.type == "cuda" and not self.model_config.enforce_eager:
            hook, most = self._hook, self.vllm_config.scheduler_config.max_num_seqs
            self._on_device.capture(min(most, len(hook.ids)), hook.ids, hook.embeddings, hook.embed)
        return result

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        if self._watch is not None:
            self._watch.check()
        for request in scheduler_output.scheduled_new_reqs:
            if (facts := request_facts(request.sampling_params)) is not None:
                self._rows[request.req_id] = row = _Row(facts)
                if self._on_device is not None:
                    self._on_device.begin(row.slot, base=row.base, voice=row.voice, generation=row.generation)
        for request_id in scheduler_output.finished_req_ids:
            if (done := self._rows.pop(request_id, None)) is not None:
                acknowledge(self._pool.talker_ack, done.slot, done.ack)
        self._output = scheduler_output if scheduler_output.total_num_scheduled_tokens else None
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._output = None

    def profile_hooks(self) -> list[tuple[Any, str]]:
        return [(self._hook, "_condition")]

    def _condition(self, request_ids: Sequence[str], ids: torch.Tensor, embeddings: torch.Tensor, embed: Any) -> None:
        assert self._output is not None
        if self._on_device is None:
            if embed is not None:
                raise RuntimeError("this model runner needs the conditioning on its device")
            if self._rows:
                self._condition_on_host(list(request_ids), self._output, embeddings)
            return
        started = time.monotonic_ns()
        entries = []
        for span in spans(list(request_ids), self._output):
            row = self._rows.get(span.request_id)
            if row is not None:
                if span.start not in (0, row.position):
                    raise RuntimeError(f"a step goes on at position {span.start}, not at {row.position}")
                row.position = span.start + span.count
            entries.append(Entry(None if row is None else row.slot, span.start, span.count))
        self._on_device.step(entries, ids, embeddings, embed)
        self._pool.counters[2] += len(entries)
        self._pool.counters[3] += time.monotonic_ns() - started
        self._faults.look()

    @torch.inference_mode()
    def _condition_on_host(self, request_ids: list[str], output: SchedulerOutput, embeddings: torch.Tensor) -> None:
        where: list[int] = []
        slots: list[int] = []
        voices: list[int] = []
        pointers: list[int] = []
        bases: list[int] = []
        for index, span in enumerate(spans(request_ids, output)):
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
