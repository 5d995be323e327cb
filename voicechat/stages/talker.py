"""The Talker's process: text pieces become symbol rows, one vLLM engine turns rows into speech tokens."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from typing import Any

import msgspec

from voicechat.contract.channel import Channel
from voicechat.contract.messages import Abort, Codes, Failed, Message, Released, Speak, Spoken, Text
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.stages.host import EngineHost, engine_prompt, prepare_process, run_host
from voicechat.stages.placement import Placement, engine_options, prepare_engine
from voicechat.stages.progress import Progress

log = logging.getLogger(__name__)

STEPS_PER_SYMBOL = 8
"""Bound on a reply's length: no symbol sounds longer than this many steps of 40 ms on average."""
SPARE_STEPS = 50
"""Steps that any reply may take on top of that."""
LOOKAHEAD = 32
"""Text is read as far as this many rows (two to three seconds) ahead of the Talker; the rest waits, as text."""
READ_ROWS = 12
"""Rows after which reading takes a break, once the Talker has some: a long text must not keep the others waiting."""
WINDOWS = 1 << 20
"""More windows than a reply ever has. An ack names the lease's generation and the window."""


class TalkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the Talker's process needs to know. ``weights_dir``: the trained weights, ``model_dir``: the LLM."""

    model_dir: str
    weights_dir: str
    thinker: str | None
    pool: PoolSpec
    dtype: str
    max_num_seqs: int
    max_model_len: int
    kv_cache_bytes: int
    temperature: float
    top_k: int
    threads: int
    log_level: int
    cores: tuple[int, ...] = ()
    place: Placement = Placement()
    projection: str | None = None
    """File with the matrix of a Thinker that the weights do not know."""


def run(sock: socket.socket, config: TalkerConfig) -> None:
    """Body of the spawned process."""
    prepare_process(config.threads, config.log_level, config.cores)
    prepare_engine(config.place)
    run_host(sock, lambda channel: Talker(channel, config))


class _Utterance:
    """One reply being spoken: its text so far, and its engine request once that has begun."""

    def __init__(self, message: Speak, frontend: Any) -> None:
        self.id = message.id
        self.slot = message.slot
        self.generation = message.generation
        self.voice = message.voice
        self.seed = message.seed
        self.rows = message.rows
        self.frontend = frontend
        self.progress = Progress()
        self.unread: deque[str] = deque()
        self.closed = False
        """No further text will come."""
        self.final = False
        """All of it has been read."""
        self.refused = False
        self.sounds = False
        self.task: asyncio.Task[None] | None = None
        self.waits: list[float] = []
        self.more = asyncio.Event()


class Talker(EngineHost):
    """Text goes into the pool as it comes; the engine's gate holds a request that is ahead of its text."""

    def __init__(self, channel: Channel, config: TalkerConfig) -> None:
        super().__init__(channel)
        self.config = config
        self.pool = Pool(config.pool)
        self._lookahead = min(LOOKAHEAD, config.pool.max_symbols // 8)
        self._utterances: dict[int, _Utterance] = {}
        self._waker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._waker.setblocking(False)

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from voicechat.models.embedded import frontend, talker
        from voicechat.models.embedded.weights import load_voice_config
        from voicechat.stages.bookkeeping import CONFIG_KEY
        from voicechat.stages.rows import keeper_ready
        from voicechat.stages.talker_engine import wake_address

        config = self.config
        self._model = talker
        self._voices = load_voice_config(config.weights_dir).talker.voices
        frontend.load_g2p()
        self._new_frontend = frontend.TextFrontend
        self._wake_address = wake_address(config.pool.name)
        await keeper_ready(self.pool, config.place.on_gpu)
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=config.model_dir,
                dtype=config.dtype,
                skip_tokenizer_init=True,
                enable_prefix_caching=False,
                max_model_len=config.max_model_len,
                max_num_seqs=config.max_num_seqs,
                kv_cache_memory_bytes=config.kv_cache_bytes,
                worker_cls="voicechat.stages.talker_engine.TalkerWorker",
                additional_config={
                    CONFIG_KEY: {
                        "pool": msgspec.to_builtins(config.pool),
                        "weights": config.weights_dir,
                        "thinker": config.thinker,
                        "projection": config.projection,
                        "conditioning": "device" if config.place.on_gpu else "host",
                    }
                },
                disable_log_stats=True,
                generation_config="vllm",
                **engine_options(config.place, "voicechat.stages.talker_engine.GatedScheduler", embeddings=True),
            )
        )
        await self._rehearse()
        self.spawn(self.watch(self._engine), "watch")
        return {"seconds": round(time.monotonic() - started, 2), "voices": ",".join(self._voices)}

    async def _rehearse(self) -> None:
        """Speak one sentence of the last slot, as a real request does, so that the first caller meets warm code."""
        slot = self.config.pool.slots - 1
        self.pool.begin(slot, 0)
        utterance = _Utterance(Speak(0, slot, 0, self._voices[0]), self._new_frontend())
        rows = [*utterance.frontend.push("Hello"), *utterance.frontend.push(" there."), *utterance.frontend.finish()]
        self.pool.append_symbols(slot, [(row.symbol, -1) for row in rows], final=True)
        prompt, sampling = self._request(utterance, 0)
        sampling.max_tokens = 16
        async for _ in self._engine.generate(prompt, sampling, "warm-up"):
            pass

    def handle(self, message: Message) -> None:
        match message:
            case Speak():
                self._utterances[message.id] = _Utterance(message, self._new_frontend())
            case Text():
                utterance = self._utterances.get(message.id)
                if utterance is not None and not utterance.refused:
                    self._add_text(utterance, message)
            case Abort():
                if (utterance := self._utterances.get(message.id)) is not None:
                    if utterance.task is None:
                        self._release(utterance, 0)
                    else:
                        self.cancel(utterance.task)
                        self._wake()
            case _:
                raise TypeError(f"not a message for the talker: {message!r}")

    def _add_text(self, utterance: _Utterance, message: Text) -> None:
        utterance.unread.extend(message.pieces)
        utterance.closed |= message.final
        if self._read(utterance):
            utterance.waits.append((time.monotonic_ns() - message.sent_ns) / 1000)
        if utterance.task is None and not utterance.refused:
            if utterance.final and not utterance.sounds:
                self.channel.send(Spoken(utterance.id, "end"))
                self._release(utterance, 0)
            elif utterance.final or utterance.progress.rows > self._model.RIGHT:
                utterance.task = self.spawn(self._speak(utterance), f"speak-{utterance.id}")

    def _read(self, utterance: _Utterance) -> bool:
        """Turn text into rows of the pool, a little ahead of the Talker. True if there are new ones."""
        if utterance.final or utterance.refused:
            return False
        progress = utterance.progress
        rows: list[Any] = []
        most = min(self._lookahead - progress.ahead, READ_ROWS)
        while utterance.unread and len(rows) < most:
            rows += utterance.frontend.push(utterance.unread.popleft())
        if utterance.closed and not utterance.unread:
            rows += utterance.frontend.finish()
            utterance.final = True
        if not rows and not utterance.final:
            return False
        last_row = self.pool.spec.max_rows - 1
        pairs = [(row.symbol, min(row.token, last_row) if utterance.rows else -1) for row in rows]
        try:
            self.pool.append_symbols(utterance.slot, pairs, final=utterance.final)
        except ValueError as error:
            self._refuse(utterance, str(error))
            return False
        progress.add_rows([row.symbol for row in rows])
        utterance.sounds |= any(row.symbol for row in rows)
        utterance.more.set()
        if utterance.task is not None and (rows or utterance.final):
            self._wake()
        return bool(rows)

    def _refuse(self, utterance: _Utterance, why: str) -> None:
        utterance.refused = True
        self.channel.send(Failed(utterance.id, why, invalid=True, param="max_tokens" if utterance.rows else None))
        if utterance.task is None:
            self._release(utterance, 0)
        else:
            self.cancel(utterance.task)

    def _request(self, utterance: _Utterance, ack: int) -> tuple[Any, Any]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        config = self.config
        return engine_prompt([self._model.BOS]), SamplingParams(
            temperature=config.temperature,
            top_k=config.top_k,
            seed=utterance.seed,
            max_tokens=config.max_model_len - 2,
            stop_token_ids=[self._model.EOS],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={
                "slot": utterance.slot,
                "ack": ack,
                "pointer": utterance.progress.base,
                "voice": self._voices.index(utterance.voice),
            },
        )

    async def _speak(self, utterance: _Utterance) -> None:
        ack = utterance.generation * WINDOWS
        try:
            while (ended := await self._speak_window(utterance, ack)) == "window":
                self._make_room(utterance)
                self._read(utterance)
                while not utterance.final and utterance.progress.rows <= utterance.progress.base + self._model.RIGHT:
                    utterance.more.clear()
                    await utterance.more.wait()
                ack += 1
            self.channel.send(Spoken(utterance.id, ended))
        except asyncio.CancelledError:
            await self._engine.abort(str(ack))
            self._wake()
        finally:
            self._release(utterance, ack)

    def _make_room(self, utterance: _Utterance) -> None:
        """Between two windows: rows that were spoken leave the pool once they fill a quarter of it."""
        if utterance.progress.base > self.pool.spec.max_symbols // 4:
            self.pool.drop_symbols(utterance.slot, utterance.progress.drop())

    async def _speak_window(self, utterance: _Utterance, ack: int) -> str:
        """Speak until the text ends (``end``), far too much was said (``length``), or a ``window`` is full."""
        progress, request_id = utterance.progress, str(ack)
        outputs = self._engine.generate(*self._request(utterance, ack), request_id)
        self._wake()
        async for output in outputs:
            part = output.outputs[0]
            codes, symbols, cut = [], bytearray(), False
            for token in part.token_ids:
                if token < self._model.BOS and not cut:
                    code, advance = self._model.split(token)
                    codes.append(code)
                    symbols += progress.symbols()
                    cut = progress.step(advance)
            if codes:
                self.channel.send(Codes(utterance.id, tuple(codes), bytes(symbols), tuple(utterance.waits)))
                utterance.waits.clear()
                self._read(utterance)
            if part.finish_reason == "length" or progress.steps > self._bound(utterance):
                log.warning("reply %d: broken off after %d steps, %d rows", utterance.id, progress.steps, progress.rows)
                await self._engine.abort(request_id)
                return "length"
            if cut:
                await self._engine.abort(request_id)
                return "window"
        if utterance.final and progress.at_end:
            return "end"
        log.warning("reply %d: the Talker stopped on row %d of %d", utterance.id, progress.pointer, progress.rows)
        return "window" if progress.skip() else "end"

    @staticmethod
    def _bound(utterance: _Utterance) -> int:
        progress = utterance.progress
        return (progress.dropped + progress.rows) * STEPS_PER_SYMBOL + SPARE_STEPS

    def _release(self, utterance: _Utterance, ack: int) -> None:
        del self._utterances[utterance.id]
        self.channel.send(Released(utterance.id, ack))

    def _wake(self) -> None:
        """Rouse an engine that sleeps because all its requests are held."""
        try:
            self._waker.sendto(b".", self._wake_address)
        except BlockingIOError:
            pass  # its queue is full of wake-ups already
