"""Where an object's time goes: methods are timed for a while, and cost nothing before and after."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any


class Stopwatch:
    """Times calls of methods of living objects, between :meth:`watch` and :meth:`stop`. For one thread."""

    def __init__(self) -> None:
        self._restore: list[tuple[Any, str, bool, Any]] = []
        self._begun = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def watch(self, owner: Any, method: str, label: str) -> None:
        """Time ``owner.method`` as ``label``; objects without such a method are left alone."""
        call = getattr(owner, method, None)
        if call is None:
            return
        self.seconds.setdefault(label, 0.0)
        self.calls.setdefault(label, 0)

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[label] += time.perf_counter() - begun
                self.calls[label] += 1

        own = method in vars(owner)
        self._restore.append((owner, method, own, call if own else None))
        setattr(owner, method, timed)

    def stop(self) -> dict[str, Any]:
        """Take the timing out again. ``wall_s``, and ``share`` of it and ``calls`` by label."""
        wall = time.perf_counter() - self._begun
        while self._restore:
            owner, method, own, call = self._restore.pop()
            if own:
                setattr(owner, method, call)
            else:
                delattr(owner, method)
        return {
            "wall_s": wall,
            "share": {label: seconds / wall for label, seconds in self.seconds.items()},
            "calls": dict(self.calls),
        }


async def observe(watch: Stopwatch, seconds: float, messages: Callable[[], int]) -> dict[str, Any]:
    """Let ``watch`` run for ``seconds``; its times, and of this process ``cpu`` (processor seconds a second, all
    threads), ``loop`` (those of this thread) and ``messages_per_s``, by a count of all messages so far."""
    before = (time.process_time(), time.thread_time(), messages())
    await asyncio.sleep(seconds)
    after = (time.process_time(), time.thread_time(), messages())
    found = watch.stop()
    rates = [(new - old) / found["wall_s"] for old, new in zip(before, after, strict=True)]
    return {**found, **dict(zip(("cpu", "loop", "messages_per_s"), rates, strict=True))}
