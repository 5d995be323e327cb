"""A gate that notes, in a counter of the pool that the Talker does not use, how often it really scheduled ahead."""

from __future__ import annotations

from typing import Any

from voicechat.stages.talker_engine import AsyncGatedScheduler


class CountingScheduler(AsyncGatedScheduler):
    """``counters[0]``: requests that took a step while a token of theirs was on the way."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        on_the_way = {request.request_id for request in self.running if request.num_output_placeholders}
        output = super().schedule(*args, **kwargs)
        self.pool.counters[0] += len(on_the_way & set(output.num_scheduled_tokens))
        return output
