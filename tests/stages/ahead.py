"""Engines on the CPU that are set up as on a GPU: the second model runner, steps scheduled ahead, rows handed over."""

from __future__ import annotations

from typing import Any

from voicechat.stages.rows import HostRowWriter, KeeperWatch
from voicechat.stages.vllm.scheduler import AsyncGatedScheduler
from voicechat.stages.vllm.thinker_worker import ThinkerWorker


class CountingScheduler(AsyncGatedScheduler):
    """Counts, in ``counters[0]``, which no Talker uses, requests that took a step with a token of theirs on the way."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        on_the_way = {request.request_id for request in self.running if request.num_output_placeholders}
        output = super().schedule(*args, **kwargs)
        self.pool.counters[0] += len(on_the_way & set(output.num_scheduled_tokens))
        return output


class HandingWorker(ThinkerWorker):
    """Hands rows over as on a GPU, to shared memory."""

    def init_device(self) -> None:
        super().init_device()
        self._writer = HostRowWriter(self._pool)
        self._watch = KeeperWatch(self._pool)
