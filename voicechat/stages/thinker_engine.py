"""The Thinker's hooks into vLLM: hidden states of each newly written token go into the response's slot.

The row of reply token ``i`` is the last hidden state of the position that predicts it, ``prompt length - 1 + i``: it
exists in the same step in which the token is sampled, so a token that has been announced always has its row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from voicechat.stages.bookkeeping import (
    CONFIG_KEY,
    acknowledge,
    batch_order,
    open_pool,
    request_facts,
    start_positions,
)
from voicechat.stages.host import die_with_parent
from voicechat.stages.profile import ProfiledWorker, know_scheduler
from voicechat.stages.rows import (
    ON_HOST,
    DeviceRowWriter,
    HostRowWriter,
    Ints,
    KeeperWatch,
    RowWriter,
    announced,
    open_rows,
    stamp,
)
from voicechat.stages.worker import Worker

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class Acks:
    """Acknowledges the slots of requests that end before a worker has seen them; the worker does it for all others.

    To be put in front of one of vLLM's schedulers.
    """

    lane = "thinker_ack"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pool = open_pool(self.vllm_config)  # type: ignore[attr-defined]
        self._seen: set[str] = set()
        know_scheduler(self)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for request in output.scheduled_new_reqs:
            self._seen.add(request.req_id)
        return output

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.request_id in self._seen:
            self._seen.discard(request.request_id)
        elif (facts := request_facts(request.sampling_params)) is not None:
            acknowledge(getattr(self.pool, self.lane), facts["slot"], facts["ack"])
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


class AckScheduler(Acks, Scheduler):
    """For engines that know a step's tokens before they schedule the next."""


class AsyncAckScheduler(Acks, AsyncScheduler):
    """For engines that schedule a step while the one before it runs."""


class ThinkerWorker(ProfiledWorker, Worker):
    """Copies hidden states from the model's output into the pool, once per row, right after each forward pass."""

    def init_device(self) -> None:
        die_with_parent()
        super().init_device()
        self._pool = open_pool(self.vllm_config)
        self._requests: dict[str, dict[str, Any]] = {}
        self._written: dict[int, tuple[int, int]] = {}
        self._writer: RowWriter | None = None
        if self.device.type != "cpu":
            self._writer = self._open_rows()

    def _open_rows(self) -> RowWriter:
        """The way to the rows on a GPU: on this one, or on the other that this process sees."""
        where = announced(self._pool)
        self._watch = KeeperWatch(self._pool)
        if where == ON_HOST:
            return HostRowWriter(self._pool)
        facts = self.vllm_config.additional_config[CONFIG_KEY]
        return DeviceRowWriter(open_rows(self._pool, torch.device("cuda", facts["rows_device"])))

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            if (facts := request_facts(request.sampling_params)) is not None:
                self._requests[request.req_id] = facts
        for request_id in scheduler_output.finished_req_ids:
            if (facts := self._requests.pop(request_id, None)) is not None:
                acknowledge(self._pool.thinker_ack, facts["slot"], facts["ack"])
        result = super().execute_model(scheduler_output)
        state = self.model_runner.execute_model_state
        if state is not None and scheduler_output.total_num_scheduled_tokens and self._requests:
            if self._writer is None:
                self._capture(state.hidden_states, scheduler_output)
            else:
                self._watch.check()
                self._hand_over(self._writer, state.hidden_states, scheduler_output)
        return result

    def profile_hooks(self) -> list[tuple[Any, str]]:
        return [(self, "_capture"), (self, "_hand_over")]

    def _hand_over(self, writer: RowWriter, hidden: torch.Tensor, output: SchedulerOutput) -> None:
        """Enqueue the copies of this step's new rows, before the step's tokens are drawn on the same stream."""
        started = time.monotonic_ns()
        plan = row_plan(batch_order(self.model_runner), output, self._requests, self._written, self._pool.spec.max_rows)
        if len(plan[0]):
            writer.write(hidden, *plan)
            self._pool.counters[0] += len(plan[0])
            self._pool.counters[1] += time.monotonic_ns() - started

    def _capture(self, hidden: torch.Tensor, output: SchedulerOutput) -> None:
        """Write the rows of this step, ``hidden`` ``[tokens of the batch, hidden size]``, as bfloat16 bits.

        Runs once per token with the caches full of the model's weights, so it spares every call that it can.
        """
        started, written, offset = time.monotonic_ns(), 0, 0
        rows, ready, most = self._pool.hidden, self._pool.hidden_ready, self._pool.spec.max_rows
        starts, counts = start_positions(output), output.num_scheduled_tokens
        bits = (hidden if hidden.dtype == torch.bfloat16 else hidden.bfloat16()).view(torch.uint16).numpy()
        for request_id in batch_order(self.model_runner):
            count = counts[request_id]
            facts = self._requests.get(request_id)
            if facts is not None:
                row = starts[request_id] - facts["first"]  # of the first position; negative inside the prompt
                skip = -row if row < 0 else 0
                end = min(row + count, most)
                if row + skip < end:
                    slot = facts["slot"]
                    rows[slot, row + skip : end] = bits[offset + skip : offset + end - row]
                    ready[slot] = end
                    written += end - row - skip
            offset += count
        if written:
            self._pool.counters[0] += written
            self._pool.counters[1] += time.monotonic_ns() - started


def row_plan(
    order: list[str],
    output: SchedulerOutput,
    requests: Mapping[str, Mapping[str, Any]],
    written: dict[int, tuple[int, int]],
    most: int,
) -> tuple[Ints, Ints, Ints]:
    """Which rows of a batch go where: places in the batch, rows of the pool (all slots on end), and their stamps.

    ``written`` (slot -> ack and the first row that is not written yet) is read and brought up to date: a row that a
    preempted request computes again is not written again, for the Talker may be reading it.
    """
    starts, counts = start_positions(output), output.num_scheduled_tokens
    source: list[int] = []
    target: list[int] = []
    stamps: list[int] = []
    offset = 0
    for request_id in order:
        count = counts[request_id]
        facts = requests.get(request_id)
        if facts is not None:
            slot, ack, row = facts["slot"], facts["ack"], starts[request_id] - facts["first"]
            held, done = written.get(slot, (0, 0))
            begin = max(row, done if held == ack else 0)
            end = min(row + count, most)
            if begin < end:
                source.extend(range(offset + begin - row, offset + end - row))
                target.extend(range(slot * most + begin, slot * most + end))
                stamps.extend(range(stamp(ack, begin), stamp(ack, end)))
                written[slot] = (ack, end)
        offset += count
    return np.array(source, np.int64), np.array(target, np.int64), np.array(stamps, np.int64)
