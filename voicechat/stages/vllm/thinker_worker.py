"""The Thinker's worker: the hidden rows of each newly written token go into the response's slot.

A row exists in the step in which its position is computed, before that step's token is drawn; so a token that has been
announced always has the rows that :class:`voicechat.contract.family.RowLayout` promises.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from voicechat.models.registry import find_family
from voicechat.stages.host import die_with_parent
from voicechat.stages.profile import ProfiledWorker
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
from voicechat.stages.vllm.adapter import (
    batch_order,
    know_architectures,
    loaded_model,
    platform_worker,
    request_facts,
    start_positions,
    step_hidden,
)
from voicechat.stages.vllm.bookkeeping import CONFIG_KEY, acknowledge, open_pool

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

Worker: Any = platform_worker()


class ThinkerWorker(ProfiledWorker, Worker):
    """Copies hidden rows from the model's output into the pool, once per row, right after each forward pass."""

    def init_device(self) -> None:
        die_with_parent()
        facts = self.vllm_config.additional_config[CONFIG_KEY]
        self._family = find_family(facts["family"]).thinker(facts["model"])
        know_architectures(self._family.engine.architectures)
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

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self._model = loaded_model(self.model_runner)

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            if (facts := request_facts(request.sampling_params)) is not None:
                self._requests[request.req_id] = facts
        for request_id in scheduler_output.finished_req_ids:
            if (facts := self._requests.pop(request_id, None)) is not None:
                acknowledge(self._pool.thinker_ack, facts["slot"], facts["ack"])
        result = super().execute_model(scheduler_output)
        hidden = step_hidden(self.model_runner)
        if hidden is not None and scheduler_output.total_num_scheduled_tokens and self._requests:
            rows = self._family.rows(self._model, hidden)
            if self._writer is None:
                self._capture(rows, scheduler_output)
            else:
                self._watch.check()
                self._hand_over(self._writer, rows, scheduler_output)
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
        """Write the rows of this step, ``hidden`` ``[tokens of the batch, width]``, as bfloat16 bits.

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
