"""Judges and teachers at work beside the event loop: each in a thread, or several in processes of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

    from voicechat.bench.voice_judges import Panel
    from voicechat.bench.voice_sounds import Kept, Pcm, Teachers, Text

T = TypeVar("T")

_here: _Bench | None = None
"""In a worker's process: those who work there."""


class _Bench:
    """Those who work in one place; each loads what it needs when it is first asked."""

    def __init__(self, kept: Kept, teachers: Teachers, panel: Panel) -> None:
        self.kept, self.teachers, self.panel = kept, teachers, panel

    def speak(self, voice: str, text: str, seed: int) -> Pcm:
        return self.teachers.speak(voice, text, seed)

    def judge(self, voice: str, system: str, text: Text, asked: tuple[str, ...]) -> dict[str, Any]:
        return self.panel.judge(self.kept.sound(voice, system, text), asked)


class Workers:
    """With one process the judges work in a thread of this one and the teachers in another; with more, all of them in
    each of so many processes."""

    def __init__(self, processes: int, kept: Kept, teachers: Teachers, panel: Panel) -> None:
        self._bench = _Bench(kept, teachers, panel)
        self._teaching: Executor
        self._judging: Executor
        if processes == 1:
            self._teaching = ThreadPoolExecutor(1, thread_name_prefix="teacher")
            self._judging = ThreadPoolExecutor(1, thread_name_prefix="judge")
        else:
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(processes, spawn, _begin, (self._bench,))
            self._teaching = self._judging = pool
        self._apart = processes > 1

    async def speak(self, voice: str, text: str, seed: int) -> Pcm:
        """What a voice's teacher says: int16 ``[n]`` at 24 kHz. Raises ``ValueError`` if it can't be said."""
        return await self._run(self._teaching, _Bench.speak, voice, text, seed)

    async def judge(self, voice: str, system: str, text: Text, asked: tuple[str, ...]) -> dict[str, Any]:
        """The words of the judges ``asked`` on a kept sound."""
        return await self._run(self._judging, _Bench.judge, voice, system, text, asked)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for executor in (self._teaching, self._judging):
            executor.shutdown(cancel_futures=True)

    async def _run(self, executor: Executor, method: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        if self._apart:
            return await loop.run_in_executor(executor, _call, method, arguments)
        return await loop.run_in_executor(executor, method, self._bench, *arguments)


def _begin(bench: _Bench) -> None:
    """In a new process: all of them know each other, and none takes a second core."""
    import torch

    torch.set_num_threads(1)
    global _here
    _here = bench


def _call(method: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    return method(_here, *arguments)
