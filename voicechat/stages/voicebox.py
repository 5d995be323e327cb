"""The VoiceBox's process: chunks of speech codes of all replies become sound, several at once.

Each reply's sound then goes through a door of its own (:mod:`voicechat.stages.door`) into the ring.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from voicechat.contract.channel import Channel
from voicechat.contract.family import Decoded, Decoder, DecoderPlace
from voicechat.contract.messages import Abort, Decode, Failed, Message, Sound
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.contract.stopwatch import Stopwatch
from voicechat.models.registry import find_family
from voicechat.stages.door import Door, FellBehind, Marker
from voicechat.stages.host import Host, prepare_process, run_host
from voicechat.stages.placement import Placement, see_gpus, stage_device

log = logging.getLogger(__name__)

_ABORTED = "The reply was aborted."
_NOT_MARKED = "The reply's sound could not be watermarked, and is withheld. Please try again."
_TOO_SLOW = "Watermarking the reply's sound can't keep up with it; the rest is withheld. Please try again."


class Mark(msgspec.Struct, frozen=True):
    """What every reply's sound is marked with. The key is a secret, and not shown."""

    key: bytes
    payload: int

    def __repr__(self) -> str:
        return f"Mark(payload={self.payload})"


class VoiceBoxConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the VoiceBox's process needs to know. ``shapes`` are the chunk lengths (steps with context) to warm up.

    ``model``: :attr:`voicechat.contract.family.Facts.voicebox`.
    """

    family: str
    model: dict[str, Any]
    pool: PoolSpec
    max_batch: int
    threads: int
    shapes: tuple[int, ...]
    log_level: int
    cores: tuple[int, ...] = ()
    place: Placement = Placement()
    mark: Mark | None = None
    """None: sound leaves unmarked."""
    patience: float = 5.0
    """Seconds by which a reply's sound may come late at the door, before the reply fails."""


def run(sock: socket.socket, config: VoiceBoxConfig) -> None:
    """Body of the spawned process."""
    prepare_process(config.threads, config.log_level, config.cores)
    if config.place.on_gpu:
        see_gpus(config.place.gpus)
    run_host(sock, lambda channel: VoiceBox(channel, config))


class VoiceBox(Host):
    """Micro-batching: whatever chunks of one shape wait when the network becomes free are decoded together."""

    def __init__(self, channel: Channel, config: VoiceBoxConfig) -> None:
        super().__init__(channel)
        self.config = config
        self.pool = Pool(config.pool)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._marking = ThreadPoolExecutor(1, thread_name_prefix="mark")
        self._waiting: list[Decode] = []
        self._doors: dict[int, Door] = {}
        self._more = asyncio.Event()
        self._decoder: Decoder | None = None
        self._make_marker: Callable[[], Marker] | None = None

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        if self.config.place.on_gpu:
            from voicechat.stages.rows import keeper_ready

            await keeper_ready(self.pool, on_gpu=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        self.spawn(self._work(), "decode")
        return {"seconds": round(time.monotonic() - started, 2)}

    def _load(self) -> None:
        config = self.config
        place = DecoderPlace(
            device=stage_device(config.place),
            graphs=config.place.graphs,
            threads=config.threads,
            max_batch=config.max_batch,
            lengths=config.shapes,
            slots=config.pool.slots,
        )
        self._decoder = find_family(config.family).voicebox(config.model, place)
        self._make_marker = self._load_marker(config)

    def _load_marker(self, config: VoiceBoxConfig) -> Callable[[], Marker] | None:
        """What marks a reply; warm for all lengths of sound."""
        if config.mark is None:
            return None
        from voicechat.watermark.embed import Embedder
        from voicechat.watermark.keys import Key

        make = functools.partial(Embedder, Key(config.mark.key), config.mark.payload)
        for seconds in (0.1, 3.0):
            door, sound = Door(make, 1.0, math.inf), np.arange(int(seconds * PCM_RATE), dtype=np.int16)
            door.through(sound, last=False)
            door.through(sound, last=True)
        return make

    def handle(self, message: Message) -> None:
        match message:
            case Decode():
                if message.start == 0:
                    self._doors[message.id] = Door(self._make_marker, message.speed, self.config.patience)
                self._waiting.append(message)
                self._more.set()
            case Abort():
                self._doors.pop(message.id, None)
                for chunk in [chunk for chunk in self._waiting if chunk.id == message.id]:
                    self._waiting.remove(chunk)
                    self._fail(chunk, _ABORTED)
            case _:
                raise TypeError(f"not a message for the voicebox: {message!r}")

    async def _work(self) -> None:
        loop, decoder = asyncio.get_running_loop(), self._decoder
        assert decoder is not None
        while True:
            while not self._waiting:
                self._more.clear()
                await self._more.wait()
            shape = decoder.shape(self._waiting[0])
            batch = [chunk for chunk in self._waiting if decoder.shape(chunk) == shape][: self.config.max_batch]
            taken = set(map(id, batch))
            self._waiting = [chunk for chunk in self._waiting if id(chunk) not in taken]
            if batch[0].steps:
                made = await loop.run_in_executor(self._thread, self._decode, decoder, batch)
            else:
                made = [Decoded(np.zeros(0, np.int16), chunk.state) for chunk in batch]
            for chunk, (samples, state) in zip(batch, made, strict=True):
                self.spawn(self._leave(chunk, samples, state), f"leave-{chunk.id}")

    async def _leave(self, message: Decode, samples: Pcm, state: bytes) -> None:
        """Through the door into the ring. What can't pass fails its reply, and nothing of it is heard."""
        door = self._doors.get(message.id)
        if door is None:
            self._fail(message, _ABORTED)
            return
        through = asyncio.get_running_loop().run_in_executor(self._marking, self._through, door, message, samples)
        try:
            async with asyncio.timeout(self.config.patience + len(samples) / PCM_RATE):
                heard = await through
        except (TimeoutError, FellBehind) as error:
            log.error("marking request %d can't keep up: %s", message.id, error or "no result in time")
            self._fail(message, _TOO_SLOW)
        except Exception:  # whatever a marker may raise, its reply is never heard unmarked
            log.exception("the sound of request %d could not be marked", message.id)
            self._fail(message, _NOT_MARKED)
        else:
            if self._doors.get(message.id) is not door:
                self._fail(message, _ABORTED)
                return
            self.pool.write_pcm(message.slot, door.given, heard)
            self.channel.send(Sound(message.id, door.given, len(heard), state))
            door.given += len(heard)
            if message.last:
                del self._doors[message.id]

    @staticmethod
    def _through(door: Door, message: Decode, samples: Pcm) -> Pcm:
        return door.through(samples, last=message.last)

    def _fail(self, message: Decode, why: str) -> None:
        self._doors.pop(message.id, None)
        self.channel.send(Failed(message.id, why))

    def _decode(self, decoder: Decoder, batch: list[Decode]) -> list[Decoded]:
        """Chunks of one shape to the sound of what each emits."""
        return decoder.decode(batch)

    def watch_work(self, watch: Stopwatch) -> None:
        watch.watch(self, "_decode", "decode")
        watch.watch(self, "_through", "mark")
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
        for thread in (self._thread, self._marking):
            await asyncio.get_running_loop().run_in_executor(thread, lambda: None)

    async def close(self) -> None:
        for thread in (self._thread, self._marking):
            thread.shutdown(wait=False, cancel_futures=True)
