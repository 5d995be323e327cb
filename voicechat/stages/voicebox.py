"""The VoiceBox's process: chunks of speech codes of all replies become sound, several at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from voicechat.contract.channel import Channel
from voicechat.contract.messages import Decode, Message, Sound
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.stopwatch import Stopwatch
from voicechat.stages.host import Host, prepare_process, run_host
from voicechat.stages.placement import Placement, see_gpus

if TYPE_CHECKING:
    from voicechat.stages.decoder import Decoder, Pcm

log = logging.getLogger(__name__)


class VoiceBoxConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the VoiceBox's process needs to know. ``shapes`` are the chunk lengths (steps with context) to warm up."""

    weights_dir: str
    pool: PoolSpec
    max_batch: int
    threads: int
    shapes: tuple[int, ...]
    log_level: int
    cores: tuple[int, ...] = ()
    place: Placement = Placement()


def run(sock: socket.socket, config: VoiceBoxConfig) -> None:
    """Body of the spawned process."""
    prepare_process(config.threads, config.log_level, config.cores)
    if config.place.on_gpu:
        see_gpus(config.place.gpus)
    run_host(sock, lambda channel: VoiceBox(channel, config))


class VoiceBox(Host):
    """Micro-batching: whatever chunks of one length wait when the network becomes free are decoded together."""

    def __init__(self, channel: Channel, config: VoiceBoxConfig) -> None:
        super().__init__(channel)
        self.config = config
        self.pool = Pool(config.pool)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._waiting: list[Decode] = []
        self._more = asyncio.Event()
        self._decoder: Decoder | None = None

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        if self.config.place.on_gpu:
            from voicechat.stages.rows import keeper_ready

            await keeper_ready(self.pool, on_gpu=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        self.spawn(self._work(), "decode")
        return {"seconds": round(time.monotonic() - started, 2)}

    def _load(self) -> None:
        from voicechat.stages.decoder import make_decoder

        config = self.config
        self._decoder = make_decoder(
            config.weights_dir,
            place=config.place,
            threads=config.threads,
            max_batch=config.max_batch,
            steps=config.shapes,
        )

    def handle(self, message: Message) -> None:
        if not isinstance(message, Decode):
            raise TypeError(f"not a message for the voicebox: {message!r}")
        self._waiting.append(message)
        self._more.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                self._more.clear()
                await self._more.wait()
            length = len(self._waiting[0].codes)
            batch = [message for message in self._waiting if len(message.codes) == length][: self.config.max_batch]
            taken = set(map(id, batch))
            self._waiting = [message for message in self._waiting if id(message) not in taken]
            sounds, phases = await loop.run_in_executor(self._thread, self._decode, batch)
            for message, sound, phase in zip(batch, sounds, phases, strict=True):
                step = len(sound) // length
                samples = sound[message.left * step : (message.left + message.emit) * step]
                self.pool.write_pcm(message.slot, message.start, samples)
                self.channel.send(Sound(message.id, message.start, len(samples), phase))

    def _decode(self, batch: list[Decode]) -> tuple[Pcm, list[float]]:
        """Chunks of one length to int16 sound ``[batch, steps * 960]``, and the phase at the end of each one's part."""
        assert self._decoder is not None
        return self._decoder.decode(batch)

    def watch_work(self, watch: Stopwatch) -> None:
        watch.watch(self, "_decode", "decode")
        watch.watch(self.pool, "write_pcm", "write_pcm")
        watch.watch(self.channel, "send", "send")

    async def profile_engine(self, step: str) -> dict[str, Any] | None:
        from voicechat.stages.profile import Profiler, row_bytes

        if step == "begin":
            self._profiler = Profiler(self, [], row_bytes(self.pool))
            return None
        work = asyncio.get_running_loop().run_in_executor
        if step == "record":
            await work(self._thread, self._profiler.record, self.config.place.on_gpu)
            return None
        return await work(self._thread, self._profiler.finish)

    async def answer(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
