"""Judges and teachers at work beside the event loop: each in a thread, or several in processes of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voicechat.bench.voice_judges import Panel
    from voicechat.bench.voice_sounds import Kept, Pcm, Teachers, Text

_here: tuple[Kept, Teachers, Panel]
"""Those who work in this process; each loads what it needs when it is first asked."""


class Workers:
    """With one process the judges work in a thread of this one and the teachers in another; with more, all of them in
    each of so many processes."""

    def __init__(self, processes: int, kept: Kept, teachers: Teachers, panel: Panel) -> None:
        self._teaching: Executor
        self._judging: Executor
        if processes == 1:
            _begin(kept, teachers, panel)
            self._teaching = ThreadPoolExecutor(1, thread_name_prefix="teacher")
            self._judging = ThreadPoolExecutor(1, thread_name_prefix="judge")
        else:
            spawn = multiprocessing.get_context("spawn")
            self._teaching = self._judging = ProcessPoolExecutor(
                processes, spawn, _begin_alone, (kept, teachers, panel)
            )

    async def speak(self, voice: str, text: str, seed: int) -> Pcm:
        """What a voice's teacher says: int16 ``[n]`` at 24 kHz. Raises ``ValueError`` if it can't be said."""
        return await asyncio.get_running_loop().run_in_executor(self._teaching, _speak, voice, text, seed)

    async def judge(self, voice: str, system: str, text: Text, asked: tuple[str, ...]) -> dict[str, Any]:
        """The words of the judges ``asked`` on a kept sound."""
        return await asyncio.get_running_loop().run_in_executor(self._judging, _judge, voice, system, text, asked)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for executor in (self._teaching, self._judging):
            executor.shutdown(cancel_futures=True)


def _begin(kept: Kept, teachers: Teachers, panel: Panel) -> None:
    global _here
    _here = kept, teachers, panel


def _begin_alone(kept: Kept, teachers: Teachers, panel: Panel) -> None:
    """In a new process, of which none takes a second core."""
    import torch

    torch.set_num_threads(1)
    _begin(kept, teachers, panel)


def _speak(voice: str, text: str, seed: int) -> Pcm:
    _, teachers, _ = _here
    return teachers.speak(voice, text, seed)


def _judge(voice: str, system: str, text: Text, asked: tuple[str, ...]) -> dict[str, Any]:
    kept, _, panel = _here
    return panel.judge(kept.sound(voice, system, text), asked)
