"""The Talker's process: text becomes text rows of the pool, one vLLM engine turns them into speech tokens.

What text rows are, how many a step needs and what a token means the family says; see :mod:`voicechat.contract.family`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from voicechat.contract.channel import Channel
from voicechat.contract.family import Said, Utterance
from voicechat.contract.messages import Abort, Codes, Failed, Message, Released, Speak, Spoken, Text
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.registry import find_family
from voicechat.stages.host import prepare_process, run_host
from voicechat.stages.placement import Placement
from voicechat.stages.vllm.host import EngineHost, prepare_engine

if TYPE_CHECKING:
    from voicechat.contract.family import TalkerModel

log = logging.getLogger(__name__)

WINDOWS = 1 << 20
"""More requests than a reply ever has. An ack names the lease's generation and the request."""
_REHEARSAL = ("Hello", " there.")
_REHEARSAL_STEPS = 16


class TalkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the Talker's process needs to know. ``model``: :attr:`voicechat.contract.family.Facts.talker`.

    ``sampling``: fields of vLLM's ``SamplingParams``.
    """

    family: str
    model: dict[str, Any]
    pool: PoolSpec
    max_num_seqs: int
    max_model_len: int
    kv_cache_bytes: int
    sampling: dict[str, Any]
    threads: int
    log_level: int
    cores: tuple[int, ...] = ()
    place: Placement = Placement()


def run(sock: socket.socket, config: TalkerConfig) -> None:
    """Body of the spawned process."""
    prepare_process(config.threads, config.log_level, config.cores)
    prepare_engine(config.place)
    run_host(sock, lambda channel: Talker(channel, config))


class _Reply:
    """One reply being spoken: its text so far, and its engine request once that has begun."""

    def __init__(self, message: Speak, utterance: Utterance) -> None:
        self.id = message.id
        self.slot = message.slot
        self.generation = message.generation
        self.seed = message.seed
        self.rows = message.rows
        self.utterance = utterance
        self.final = False
        """All of the text has been read."""
        self.refused = False
        self.task: asyncio.Task[None] | None = None
        self.waits: list[float] = []
        self.more = asyncio.Event()


class Talker(EngineHost):
    """Text goes into the pool as it comes; the engine's gate holds a request that is ahead of its text."""

    def __init__(self, channel: Channel, config: TalkerConfig) -> None:
        super().__init__(channel)
        self.config = config
        self.pool = Pool(config.pool)
        self._replies: dict[int, _Reply] = {}
        self._waker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._waker.setblocking(False)

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        from voicechat.stages.vllm.engine import EngineSpec, start_engine
        from voicechat.stages.vllm.scheduler import wake_address

        config = self.config
        self._model: TalkerModel = find_family(config.family).talker(config.model)
        self._model.load()
        self._wake_address = wake_address(config.pool.name)
        await self.keeper_ready(self.pool, config.place)
        self._engine = start_engine(
            self._model.engine,
            EngineSpec(
                role="talker",
                family=config.family,
                model=config.model,
                pool=config.pool,
                place=config.place,
                max_num_seqs=config.max_num_seqs,
                max_model_len=config.max_model_len,
                kv_cache_bytes=config.kv_cache_bytes,
                prefix_caching=False,  # placeholders are alike: false hits
                tokenizer=False,
                embeddings=True,
            ),
        )
        await self._rehearse()
        self.spawn(self.watch(self._engine), "watch")
        return {"seconds": round(time.monotonic() - started, 2)}

    async def _rehearse(self) -> None:
        """Speak a little on the last slot, as a real request does, so that the first caller meets warm code."""
        slot = self.config.pool.slots - 1
        self.pool.begin(slot, 0)
        reply = self._open(Speak(0, slot, 0, 0, rows=False))
        reply.utterance.push(_REHEARSAL, final=True, note=b"")
        while (read := reply.utterance.read()) is not None:
            self.pool.append_text(slot, read.rows, final=read.final)
            if read.final:
                break
        self.pool.append_text(slot, (), final=True)
        prompt, sampling = self._request(reply, 0)
        sampling.max_tokens = _REHEARSAL_STEPS
        async for _ in self._engine.generate(prompt, sampling, "warm-up"):
            pass

    def _open(self, message: Speak) -> _Reply:
        spec = self.config.pool
        most = spec.max_rows if message.rows else 0
        return _Reply(message, self._model.utterance(message.voice, max_rows=most, max_text_rows=spec.max_text_rows))

    def handle(self, message: Message) -> None:
        match message:
            case Speak():
                self._replies[message.id] = self._open(message)
            case Text():
                reply = self._replies.get(message.id)
                if reply is not None and not reply.refused:
                    self._add_text(reply, message)
            case Abort():
                if (reply := self._replies.get(message.id)) is not None:
                    if reply.task is None:
                        self._release(reply, 0)
                    else:
                        self.cancel(reply.task)
                        self._wake()
            case _:
                raise TypeError(f"not a message for the talker: {message!r}")

    def _add_text(self, reply: _Reply, message: Text) -> None:
        reply.utterance.push(message.pieces, final=message.final, note=message.note)
        if self._read(reply):
            reply.waits.append((time.monotonic_ns() - message.sent_ns) / 1000)
        if reply.task is None and not reply.refused:
            if reply.utterance.silent:
                self.channel.send(Spoken(reply.id, "end"))
                self._release(reply, 0)
            elif reply.utterance.ready:
                reply.task = self.spawn(self._speak(reply), f"speak-{reply.id}")

    def _read(self, reply: _Reply) -> bool:
        """Put the text rows that are due into the pool. True if there were any."""
        if reply.final or reply.refused:
            return False
        read = reply.utterance.read()
        if read is None:
            return False
        reply.final = read.final
        try:
            self.pool.append_text(reply.slot, read.rows, final=read.final)
        except ValueError as error:
            self._refuse(reply, str(error))
            return False
        reply.more.set()
        if reply.task is not None:
            self._wake()
        return bool(read.rows)

    def _refuse(self, reply: _Reply, why: str) -> None:
        reply.refused = True
        self.channel.send(Failed(reply.id, why, invalid=True, param="max_tokens" if reply.rows else None))
        if reply.task is None:
            self._release(reply, 0)
        else:
            self.cancel(reply.task)

    def _request(self, reply: _Reply, ack: int) -> tuple[Any, Any]:
        from voicechat.stages.vllm.engine import engine_prompt, sampling_params

        config, request = self.config, reply.utterance.request()
        most = config.max_model_len - 1 - len(request.ids)
        seeded = {} if reply.seed is None else {"seed": reply.seed}
        return engine_prompt(request.ids), sampling_params(
            {"slot": reply.slot, "ack": ack, "prompt": len(request.ids), **seeded, **request.facts},
            **config.sampling,
            seed=reply.seed,
            max_tokens=most if request.max_tokens is None else min(most, request.max_tokens),
            stop_token_ids=list(self._model.stop_ids),
            detokenize=False,
        )

    async def _speak(self, reply: _Reply) -> None:
        ack = reply.generation * WINDOWS
        try:
            while (ended := await self._speak_window(reply, ack)) == "window":
                if dropped := reply.utterance.drop():
                    self.pool.drop_text(reply.slot, dropped)
                self._read(reply)
                while not reply.utterance.ready:
                    reply.more.clear()
                    await reply.more.wait()
                ack += 1
            self.channel.send(Spoken(reply.id, ended))
        except asyncio.CancelledError:
            await self._engine.abort(str(ack))
            self._wake()
        finally:
            self._release(reply, ack)

    async def _speak_window(self, reply: _Reply, ack: int) -> str:
        """Speak until the text ends (``end``), far too much was said (``length``), or a ``window`` is full."""
        request_id, done = str(ack), 0
        outputs = self._engine.generate(*self._request(reply, ack), request_id)
        self._wake()
        async for output in outputs:
            part = output.outputs[0]
            said = self._take(reply, part.token_ids, done)
            done += len(part.token_ids)
            if said.steps:
                self.channel.send(Codes(reply.id, said.steps, tuple(reply.waits)))
                reply.waits.clear()
                self._read(reply)
            if part.finish_reason == "length" or said.end == "length":
                await self._engine.abort(request_id)
                return "length"
            if said.end:
                await self._engine.abort(request_id)
                return said.end
        return reply.utterance.finish()

    def _take(self, reply: _Reply, tokens: Any, done: int) -> Said:
        """What sampled tokens say, with what the worker added to each; ``done`` tokens came before."""
        extra = b""
        if self.pool.spec.extra_bytes:
            extra = self.pool.extra[reply.slot, done : done + len(tokens)].tobytes()
        return reply.utterance.take(tokens, extra)

    def _release(self, reply: _Reply, ack: int) -> None:
        del self._replies[reply.id]
        self.channel.send(Released(reply.id, ack))

    def _wake(self) -> None:
        """Rouse an engine that sleeps because all its requests are held."""
        try:
            self._waker.sendto(b".", self._wake_address)
        except BlockingIOError:
            pass  # its queue is full of wake-ups already
