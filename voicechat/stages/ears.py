"""The ears: sounds become text. They live in the Thinker's process, or in one of their own if there is no Thinker."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from voicechat.cascade.channel import Channel
from voicechat.cascade.messages import Abort, Failed, Message, Transcribe, Transcript
from voicechat.cascade.pool import Pool, PoolSpec
from voicechat.stages.host import Host, prepare_process, run_host


class EarsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which ears: ``dir`` is their model's local folder, ``workers`` the sounds that are heard at once."""

    dir: str
    threads: int
    beam_size: int
    compute_type: str = "int8"
    workers: int = 1


class EarsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of its own needs to know."""

    ears: EarsSpec
    pool: PoolSpec
    log_level: int


class Listener:
    """Transcribes for a host, in threads of its own, first come, first served. ``spec`` None: a host without ears."""

    def __init__(self, host: Host, pool: Pool, spec: EarsSpec | None) -> None:
        self._host = host
        self._pool = pool
        self._spec = spec
        self._running: dict[int, Future[str]] = {}
        self._thread = ThreadPoolExecutor(spec.workers if spec is not None else 1, thread_name_prefix="ears")
        self._ears: Any = None

    def load(self) -> asyncio.Future[None]:
        """Begin to load and warm up, if there are ears. The future is done when that is."""
        return asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    def _load(self) -> None:
        spec = self._spec
        if spec is None:
            return
        from voicechat.models.embedded.ears import Ears

        self._ears = Ears(
            spec.dir,
            threads=spec.threads,
            beam_size=spec.beam_size,
            compute_type=spec.compute_type,
            workers=spec.workers,
        )
        self._ears.warm_up()

    def listen(self, message: Transcribe) -> None:
        """Queue a sound; its :class:`Transcript` (or :class:`Failed`) follows in any case."""
        pcm = self._pool.bays[message.bay, : message.count].copy()
        self._running[message.id] = hearing = self._thread.submit(self._hear, pcm)
        self._host.spawn(self._answer(message.id, hearing), f"transcribe-{message.id}")

    def abort(self, number: int) -> None:
        """Give a sound up, which takes effect only if it still waits for its turn."""
        if (hearing := self._running.get(number)) is not None:
            hearing.cancel()

    def close(self) -> None:
        """Let go of the thread; what it does now is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, number: int, hearing: Future[str]) -> None:
        started = time.monotonic()
        try:
            text = await asyncio.wrap_future(hearing)
        except asyncio.CancelledError:
            self._host.channel.send(Failed(number, "the transcription was cancelled"))
        else:
            self._host.channel.send(Transcript(number, text, time.monotonic() - started))
        finally:
            del self._running[number]

    def _hear(self, pcm: npt.NDArray[np.float32]) -> str:
        if self._ears is None:
            raise RuntimeError("this model has no ears of its own, and none were configured")
        text: str = self._ears.transcribe(pcm)
        return text


class EarsHost(Host):
    """The ears in a process of their own; no engine is loaded."""

    def __init__(self, channel: Channel, config: EarsConfig) -> None:
        super().__init__(channel)
        self._listener = Listener(self, Pool(config.pool), config.ears)

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        await self._listener.load()
        return {"seconds": round(time.monotonic() - started, 2)}

    def handle(self, message: Message) -> None:
        match message:
            case Transcribe():
                self._listener.listen(message)
            case Abort():
                self._listener.abort(message.id)
            case _:
                raise TypeError(f"not a message for the ears: {message!r}")

    async def close(self) -> None:
        self._listener.close()


def run(sock: socket.socket, config: EarsConfig) -> None:
    """Body of the spawned process."""
    prepare_process(config.ears.threads, config.log_level)
    run_host(sock, lambda channel: EarsHost(channel, config))
