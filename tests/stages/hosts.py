"""One stage's process on its own, driven by messages as the coordinator drives it."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from voicechat.cascade.stage import Stage
from voicechat.contract.messages import Message, Released
from voicechat.contract.sound import Pcm
from voicechat.models.embedded import speaking
from voicechat.models.embedded.progress import Progress
from voicechat.stages import talker, thinker, voicebox

T = TypeVar("T")
PATIENCE = 120.0
"""Bound in seconds on any wait, so that a fault shows as a failure and not as a hang."""
SMALL_BATCH = 64
"""Tokens of one step of :func:`run_thinker_in_small_batches`."""


SHORT_WINDOW = 40
"""Steps of a window of :func:`run_talker_in_short_windows`."""
short_windows = functools.partial(Progress, window_steps=SHORT_WINDOW)


class StageHost:
    """Starts a stage's process and keeps every message that it sends, by request."""

    def __init__(self, name: str, target: Callable[..., None], config: Any) -> None:
        self.stage = Stage(name, target, (config,), on_message=self._take, on_death=self._died)
        self.messages: dict[int, list[Message]] = defaultdict(list)
        self.death: str | None = None
        self._news = asyncio.Event()

    def _take(self, message: Message) -> None:
        self.messages[getattr(message, "id", -1)].append(message)
        self._news.set()

    def _died(self, _: Stage, how: str) -> None:
        self.death = how
        self._news.set()

    def send(self, message: Message) -> None:
        """Send a command."""
        self.stage.send(message)

    def of(self, number: int, kind: type[T]) -> list[T]:
        """Messages of one kind about a request, in order."""
        return [message for message in self.messages[number] if isinstance(message, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is looked at after every message."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                assert self.death is None, f"the stage died: {self.death}"
                self._news.clear()
                await self._news.wait()

    async def released(self, *numbers: int) -> None:
        """Wait until the stage has let go of these requests."""
        await self.until(lambda: all(self.of(number, Released) for number in numbers))


def run_thinker_in_small_batches(sock: socket.socket, config: thinker.ThinkerConfig) -> None:
    """The Thinker's process with a bound of a few tokens per step, so that every longer prompt is read in pieces."""
    thinker.prepare_process(config.threads, config.log_level)
    thinker.prepare_engine(config.place)
    from vllm.engine import arg_utils

    small = functools.partial(arg_utils.AsyncEngineArgs, max_num_batched_tokens=SMALL_BATCH)
    arg_utils.AsyncEngineArgs = small  # type: ignore[assignment,misc]
    thinker.run_host(sock, lambda channel: thinker.Thinker(channel, config))


FAULT_FILE = "VOICECHAT_TEST_FAULT"
"""In the environment: path of a file that says what :func:`run_voicebox_with_faults` does: ``raise``, ``hang``."""


def run_voicebox_with_faults(sock: socket.socket, config: voicebox.VoiceBoxConfig) -> None:
    """The VoiceBox's process with an embedder that fails as it is told, while it is told so."""
    from voicechat.watermark.embed import Embedder

    fault, push = Path(os.environ[FAULT_FILE]), Embedder.push

    def faulty(self: Embedder, pcm: Pcm) -> Pcm:
        if fault.read_text() == "raise":
            raise FloatingPointError("the mark has slipped")
        while fault.read_text() == "hang":
            time.sleep(0.01)
        return push(self, pcm)

    Embedder.push = faulty  # type: ignore[method-assign]
    voicebox.run(sock, config)


def run_talker_in_short_windows(sock: socket.socket, config: talker.TalkerConfig) -> None:
    """The Talker's process with windows of a few steps, so that every longer reply takes several."""
    speaking.Progress = short_windows  # type: ignore[assignment,misc]
    talker.run(sock, config)
