"""The Talker's worker: the family's conditioning edits each step's input embeddings before the forward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from voicechat.contract.family import Conditioning, Entry, HiddenRows, TalkerInside
from voicechat.models.registry import find_family
from voicechat.stages.host import die_with_parent
from voicechat.stages.profile import ProfiledWorker
from voicechat.stages.rows import ON_HOST, CopiedRows, FaultReport, KeeperWatch, SharedRows, announced, open_rows
from voicechat.stages.talker import WINDOWS
from voicechat.stages.vllm.adapter import (
    InputHook,
    SampleHook,
    know_architectures,
    loaded_model,
    platform_worker,
    request_facts,
)
from voicechat.stages.vllm.bookkeeping import CONFIG_KEY, acknowledge, open_pool, spans

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

Worker: Any = platform_worker()


class _Speaker:
    """One request inside the worker: its slot, the tokens of its prompt, and the position it has come to."""

    __slots__ = ("ack", "position", "prompt", "slot")

    def __init__(self, facts: dict[str, Any]) -> None:
        self.slot: int = facts["slot"]
        self.ack: int = facts["ack"]
        self.prompt: int = facts["prompt"]
        self.position = 0


class TalkerWorker(ProfiledWorker, Worker):
    """Lets the family condition all requests of a step at once, on the host or on the device."""

    def init_device(self) -> None:
        die_with_parent()
        facts = self.vllm_config.additional_config[CONFIG_KEY]
        self._on_host = not facts["on_device"]
        self._family = find_family(facts["family"]).talker(facts["model"])
        know_architectures(self._family.engine.architectures)
        super().init_device()
        self._pool = open_pool(self.vllm_config)
        self._speakers: dict[str, _Speaker] = {}
        self._entries: list[Entry] = []
        self._output: SchedulerOutput | None = None
        self._watch: KeeperWatch | None = None
        self._faults: FaultReport | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        inside = TalkerInside(
            pool=self._pool,
            model=loaded_model(self.model_runner),
            device=self.device,
            on_host=self._on_host,
            open_rows=self._open_rows,
        )
        self._conditioning: Conditioning = self._family.conditioning(inside)
        self._hook = InputHook(self.model_runner, lambda: self._output is not None, self._condition)
        self._behind: SampleHook | None = None
        if self._pool.spec.extra_bytes:
            self._behind = SampleHook(self.model_runner, lambda: bool(self._entries), self._sampled)

    def _open_rows(self) -> HiddenRows:
        """The hidden rows where they lie: on this device, or in shared memory."""
        if announced(self._pool) == ON_HOST:
            return CopiedRows(self._pool, self.device)
        rows = SharedRows(open_rows(self._pool, self.device), self._pool.spec)
        self._watch = KeeperWatch(self._pool)
        self._faults = FaultReport(self._pool, rows.faults)
        return rows

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()
        if self.device.type == "cuda" and not self.model_config.enforce_eager:
            hook, most = self._hook, self.vllm_config.scheduler_config.max_num_seqs
            self._conditioning.capture(min(most, len(hook.ids)), hook.ids, hook.embeddings, hook.embed)
        return result

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        if self._watch is not None:
            self._watch.check()
        for request in scheduler_output.scheduled_new_reqs:
            if (facts := request_facts(request.sampling_params)) is not None:
                self._speakers[request.req_id] = speaker = _Speaker(facts)
                self._conditioning.begin(speaker.slot, speaker.ack // WINDOWS, facts)
        for request_id in scheduler_output.finished_req_ids:
            if (done := self._speakers.pop(request_id, None)) is not None:
                acknowledge(self._pool.talker_ack, done.slot, done.ack)
        self._output = scheduler_output if scheduler_output.total_num_scheduled_tokens else None
        self._entries = []
        try:
            result = super().execute_model(scheduler_output)
        finally:
            self._output = None
        if self._behind is not None:
            self._behind.before()
        return result

    def profile_hooks(self) -> list[tuple[Any, str]]:
        return [(self._hook, "_condition")]

    def _condition(self, request_ids: Sequence[str], ids: torch.Tensor, embeddings: torch.Tensor, embed: Any) -> None:
        assert self._output is not None
        started = time.monotonic_ns()
        entries = self._entries
        for span in spans(list(request_ids), self._output):
            speaker = self._speakers.get(span.request_id)
            if speaker is not None:
                if span.start not in (0, speaker.position):
                    raise RuntimeError(f"a step goes on at position {span.start}, not at {speaker.position}")
                speaker.position = span.start + span.count
            entries.append(Entry(None if speaker is None else speaker.slot, span.start, span.count))
        self._conditioning.step(entries, ids, embeddings, embed)
        if not self._on_host:  # there, reading rows counts itself
            self._pool.counters[2] += len(entries)
            self._pool.counters[3] += time.monotonic_ns() - started
        if self._faults is not None:
            self._faults.look()

    def _sampled(self, request_ids: Sequence[str], tokens: torch.Tensor, hidden: torch.Tensor) -> None:
        """What the family adds to the tokens just drawn goes into the pool, before the tokens leave this process."""
        extra = self._conditioning.sampled(self._entries, tokens, hidden)
        if extra is None:
            return
        fresh = extra.cpu().numpy()
        for request_id, row in zip(request_ids, fresh, strict=True):
            speaker = self._speakers.get(request_id)
            if speaker is not None and (step := speaker.position - speaker.prompt) >= 0:
                self._pool.extra[speaker.slot, step] = row
