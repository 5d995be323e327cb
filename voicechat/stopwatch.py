"""Where an object's time goes: methods are timed for a while, and cost nothing before and after."""

from __future__ import annotations

import functools
import time
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
