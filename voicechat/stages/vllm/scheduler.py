"""The stages' schedulers: slots are acknowledged, and the Talker's requests are held until their text is there."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from voicechat.contract.family import Pace
from voicechat.models.registry import find_family
from voicechat.stages.profile import know_scheduler
from voicechat.stages.vllm.adapter import request_facts
from voicechat.stages.vllm.bookkeeping import CONFIG_KEY, acknowledge, open_pool

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

HELD_WAIT = 0.004
"""Seconds that a wholly held engine sleeps at most before it looks for new requests again."""


def wake_address(pool_name: str) -> str:
    """Abstract socket address at which a held Talker engine listens for 'new rows'."""
    return f"\0{pool_name}-talker"


class Acks:
    """Acknowledges the slots of requests that end before a worker has seen them; the worker does it for all others.

    To be put in front of one of vLLM's schedulers.
    """

    lane = "thinker_ack"
    vllm_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pool = open_pool(self.vllm_config)
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


class Gate(Acks):
    """Sets aside running requests whose next rows are not ready; sleeps, and can be woken, if that is all of them.

    How many text rows a step needs the family's pace says. Where steps are scheduled ahead of their tokens, a request
    that was set aside waits until none of its tokens is on the way.
    """

    lane = "talker_ack"
    running: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        facts = self.vllm_config.additional_config[CONFIG_KEY]
        self._talker = find_family(facts["family"]).talker(facts["model"])
        self._paces: dict[str, Pace] = {}
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
        if self.pool.text_final[slot]:
            return True
        pace = self._paces.get(request.request_id)
        if pace is None:
            pace = self._paces[request.request_id] = self._talker.pace(facts)
        return int(self.pool.text_ready[slot]) >= pace.rows(request.all_token_ids, on_the_way)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._paces.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


class GatedScheduler(Gate, Scheduler):
    """For engines that know a step's tokens before they schedule the next."""


class AsyncGatedScheduler(Gate, AsyncScheduler):
    """For engines that schedule a step while the one before it runs."""
