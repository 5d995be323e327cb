"""Dead stages are started again, with growing pauses, while the others serve on; but not for ever."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from voicechat.cascade.stage import StageLike

log = logging.getLogger(__name__)

MOST_CRASHES = 5
"""Lives in a row in which a stage ended without having worked; then it is not started again."""
LONGEST_PAUSE_S = 30.0
"""Between two starts of a stage."""


class Revival:
    """Brings stages back.

    One that ends again and again before it has worked at all is left alone: its folder or its memory has to be seen to,
    and a processor that starts it for ever would be lost to the others.
    """

    def __init__(self) -> None:
        self.restarts: dict[str, int] = {}
        """How often each stage came back."""
        self.given_up: dict[str, str] = {}
        """Stages that are not started again, by name, and why."""
        self._crashes: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, stage: StageLike) -> None:
        """A stage has ended: see to it that it comes back."""
        task = asyncio.get_running_loop().create_task(self._revive(stage), name=f"revive-{stage.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Start nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def change(self, seconds: float) -> None:
        """Wait until a stage is back or given up, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _revive(self, stage: StageLike) -> None:
        name = stage.name
        if stage.worked:
            self._crashes[name] = 0
        while True:
            crashes = self._crashes[name] = self._crashes.get(name, 0) + 1
            if crashes > MOST_CRASHES:
                self._give_up(stage)
                return
            await asyncio.sleep(min(0.5 * 2 ** (crashes - 1), LONGEST_PAUSE_S))
            try:
                await stage.start()
            except RuntimeError as error:
                log.error("the %s stage did not come back: %s", name, error)
            else:
                self.restarts[name] = self.restarts.get(name, 0) + 1
                log.info("the %s stage is back", name)
                self._look_again()
                return

    def _give_up(self, stage: StageLike) -> None:
        why = stage.diagnosis or "it does not start"
        self.given_up[stage.name] = f"given up after {MOST_CRASHES} starts in vain ({why})"
        log.critical("the %s stage is %s; its last words:", stage.name, self.given_up[stage.name])
        for line in stage.last_words:
            log.critical("  %s", line)
        self._look_again()

    def _look_again(self) -> None:
        """Rouse those that wait."""
        self._changed.set()
        self._changed = asyncio.Event()
