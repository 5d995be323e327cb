"""The ears: sounds become text.

On the CPU they live in the Thinker's process, or in one of their own if there is no Thinker. On a GPU they always have
their own: the Thinker's process shares its interpreter's lock among all replies that are being written and has no CUDA
context (its engine's core, which has one, is a process of its own), the ears' memory is bounded by itself, and a fault
of the device there takes no reply's text with it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from voicechat.contract.channel import Channel
from voicechat.contract.hearing import EarsFacts, HearingOptions, Transcription
from voicechat.contract.messages import Abort, Failed, Message, Transcribe, Transcript
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.stopwatch import Stopwatch
from voicechat.models.ears.refusal import EarsRefusal, check_options
from voicechat.stages.host import Host, prepare_process, run_host
from voicechat.stages.placement import Placement, bounded_gpu, see_gpus

log = logging.getLogger(__name__)

Pcm = npt.NDArray[np.float32]


class EarsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which ears: ``dir`` is their model's local folder, ``workers`` the sounds that are heard at once on the CPU.

    On a GPU there is one worker, which hears up to ``max_batch`` sounds together; beams and ``compute_type`` are of the
    CPU's ears alone. ``language``: what multilingual ears hear if nobody says; None: they find out.
    """

    dir: str
    threads: int
    beam_size: int
    compute_type: str = "int8"
    workers: int = 1
    max_batch: int = 1
    language: str | None = None
    place: Placement = Placement()


class EarsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of its own needs to know."""

    ears: EarsSpec
    pool: PoolSpec
    log_level: int


Job = tuple[Pcm, HearingOptions]
"""A sound, float32 mono 16 kHz of shape ``[samples]``, and how it is to be heard."""


class Transcriber(Protocol):
    """Hears several sounds at once."""

    facts: EarsFacts

    def hear(self, jobs: Sequence[Job]) -> list[Transcription]:
        """One for each; no text for silence. Raises RuntimeError if it fails."""

    def check(self) -> None:
        """After a fault: raises RuntimeError if there is no use in going on."""


class _OneByOne:
    """The CPU's ears; as many threads as there are workers may call them at once."""

    def __init__(self, spec: EarsSpec) -> None:
        from voicechat.models.ears.whisper import Ears

        self._ears = Ears(
            spec.dir,
            threads=spec.threads,
            beam_size=spec.beam_size,
            compute_type=spec.compute_type,
            workers=spec.workers,
            language=spec.language,
        )
        self.facts = self._ears.facts
        self._ears.warm_up()

    def hear(self, jobs: Sequence[Job]) -> list[Transcription]:
        return [self._ears.hear(sound, options) for sound, options in jobs]

    def check(self) -> None:
        pass


def load_ears(spec: EarsSpec) -> Transcriber:
    """The ears for a place, warm. For the first GPU that the process sees, if it is one."""
    if not spec.place.on_gpu:
        return _OneByOne(spec)
    import torch

    from voicechat.models.ears.whisper_torch import TorchEars

    torch.set_num_threads(spec.threads)
    device = bounded_gpu(spec.place)
    ears = TorchEars(
        spec.dir, device=device, max_batch=spec.max_batch, graphs=spec.place.graphs, language=spec.language
    )
    ears.warm_up()
    return ears


class _Waiting(NamedTuple):
    job: Job
    since: float


class Listener:
    """Transcribes for a host, in threads of its own, first come, first served; what is of the background waits until
    nothing else does. ``spec`` None: a host without ears.

    Sounds that wait when a worker becomes free are heard together, up to the ears' batch. One of the background is
    heard alone, and never by the last worker if there are several.
    """

    def __init__(self, host: Host, pool: Pool, spec: EarsSpec | None) -> None:
        self._host = host
        self._pool = pool
        self._spec = spec
        on_gpu = spec is not None and spec.place.on_gpu
        self._workers = spec.workers if spec is not None and not on_gpu else 1
        self._batch = spec.max_batch if spec is not None and on_gpu else 1
        self._waiting: dict[int, _Waiting] = {}
        self._background: dict[int, _Waiting] = {}
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(self._workers, thread_name_prefix="ears")
        self._ears: Transcriber | None = None

    def load(self) -> asyncio.Future[None]:
        """Begin to load and warm up, if there are ears. The future is done when that is."""
        return asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    def _load(self) -> None:
        if self._spec is not None:
            self._ears = load_ears(self._spec)

    def start(self) -> None:
        """Begin to hear; once the ears are loaded."""
        if self._ears is not None:
            for number in range(self._workers):
                self._host.spawn(self._work(self._ears, number == 0), f"ears-{number}")

    def listen(self, message: Transcribe) -> None:
        """Queue a sound; its :class:`Transcript` (or :class:`Failed`) follows in any case."""
        if self._ears is None:
            raise RuntimeError("this model has no ears of its own, and none were configured")
        try:
            check_options(self._ears.facts, message.options)
        except EarsRefusal as refusal:
            self._host.channel.send(Failed(message.id, str(refusal), invalid=True, param=refusal.param))
            return
        pcm = self._pool.bays[message.bay, : message.count].copy()
        waiting = self._background if message.options.background else self._waiting
        waiting[message.id] = _Waiting((pcm, message.options), time.monotonic())
        self._more.set()

    def abort(self, number: int) -> None:
        """Give a sound up, which takes effect only if it still waits for its turn."""
        if (self._waiting.pop(number, None) or self._background.pop(number, None)) is not None:
            self._host.channel.send(Failed(number, "the transcription was cancelled"))

    def close(self) -> None:
        """Let go of the threads; what they do now is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self, ears: Transcriber, first: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not (taken := self._next(first)):
                self._more.clear()
                await self._more.wait()
            try:
                heard = await loop.run_in_executor(self._thread, self._hear, ears, [one.job for one in taken.values()])
            except (RuntimeError, ValueError) as error:  # torch's and CTranslate2's word for most of their faults
                log.exception("%d sounds could not be heard", len(taken))
                for number in taken:
                    self._host.channel.send(Failed(number, f"the sound could not be heard: {error}"))
                await loop.run_in_executor(self._thread, ears.check)  # a lost device ends the process
                continue
            now = time.monotonic()
            for (number, one), said in zip(taken.items(), heard, strict=True):
                self._host.channel.send(Transcript(number, said, now - one.since))

    def _next(self, first: bool) -> dict[int, _Waiting]:
        """What is to be heard next, taken out; nothing if nothing waits for this worker."""
        numbers = list(self._waiting)[: self._batch]
        if not numbers and self._background and (first or self._workers == 1):
            number = next(iter(self._background))
            return {number: self._background.pop(number)}
        return {number: self._waiting.pop(number) for number in numbers}

    def _hear(self, ears: Transcriber, jobs: Sequence[Job]) -> list[Transcription]:
        return ears.hear(jobs)

    def watch_work(self, watch: Stopwatch) -> None:
        """Have the stopwatch look at the hearing."""
        watch.watch(self, "_hear", "hear")


class EarsHost(Host):
    """The ears in a process of their own; no engine is loaded."""

    def __init__(self, channel: Channel, config: EarsConfig) -> None:
        super().__init__(channel)
        self._pool = Pool(config.pool)
        self._on_gpu = config.ears.place.on_gpu
        self._listener = Listener(self, self._pool, config.ears)

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        if self._on_gpu:
            from voicechat.stages.rows import keeper_ready

            await keeper_ready(self._pool, on_gpu=True)
        await self._listener.load()
        self._listener.start()
        return {"seconds": round(time.monotonic() - started, 2)}

    def handle(self, message: Message) -> None:
        match message:
            case Transcribe():
                self._listener.listen(message)
            case Abort():
                self._listener.abort(message.id)
            case _:
                raise TypeError(f"not a message for the ears: {message!r}")

    def watch_work(self, watch: Stopwatch) -> None:
        self._listener.watch_work(watch)
        watch.watch(self.channel, "send", "send")

    async def close(self) -> None:
        self._listener.close()


def run(sock: socket.socket, config: EarsConfig) -> None:
    """Body of the spawned process."""
    prepare_process(config.ears.threads, config.log_level)
    if config.ears.place.on_gpu:
        see_gpus(config.ears.place.gpus)
    run_host(sock, lambda channel: EarsHost(channel, config))
