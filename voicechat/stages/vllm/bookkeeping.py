"""What both engines' workers need of a scheduler step: which rows of the batch belong to which request and slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from voicechat.contract.pool import Pool, PoolSpec
from voicechat.stages.vllm.adapter import start_positions

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

CONFIG_KEY = "voicechat"
"""Key of vLLM's ``additional_config`` under which an engine finds the pool and its stage's own facts."""


def open_pool(vllm_config: Any) -> Pool:
    """The pool that the engine was told of."""
    return Pool(PoolSpec(**vllm_config.additional_config[CONFIG_KEY]["pool"]))


def acknowledge(lane: npt.NDArray[np.int64], slot: int, ack: int) -> None:
    """Say that a slot will not be touched any more on behalf of ``ack`` or any smaller ack of the same lease."""
    lane[slot] = max(int(lane[slot]), ack)


@dataclass(slots=True)
class Span:
    """The batch's next ``count`` rows are positions ``start``… of request ``request_id``."""

    request_id: str
    start: int
    count: int


def spans(request_ids: list[str], output: SchedulerOutput) -> Iterator[Span]:
    """The spans of one step, in the batch's row order (``request_ids`` is that order)."""
    starts = start_positions(output)
    for request_id in request_ids:
        yield Span(request_id, starts[request_id], output.num_scheduled_tokens[request_id])
