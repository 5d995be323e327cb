"""The Thinker's process: one vLLM engine that writes replies, and on the CPU the ears."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any

import msgspec

from voicechat.contract.channel import Channel
from voicechat.contract.messages import Abort, Failed, Generate, Message, Piece, Released, Transcribe, Turn, Written
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.tools import as_text
from voicechat.stages.ears import EarsSpec, Listener
from voicechat.stages.host import EngineHost, engine_prompt, prepare_process, run_host
from voicechat.stages.placement import Placement, engine_options, prepare_engine

log = logging.getLogger(__name__)


class ThinkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the Thinker's process needs to know. The folder is local; ``ears`` None: not in this process."""

    model_dir: str
    ears: EarsSpec | None
    pool: PoolSpec
    dtype: str
    max_num_seqs: int
    max_model_len: int
    kv_cache_bytes: int
    threads: int
    default_max_tokens: int
    temperature: float
    top_p: float
    repetition_penalty: float
    system_prompt: str
    log_level: int
    cores: tuple[int, ...] = ()
    place: Placement = Placement()


def run(sock: socket.socket, config: ThinkerConfig) -> None:
    """Body of the spawned process."""
    prepare_process(config.threads, config.log_level, config.cores)
    prepare_engine(config.place)
    run_host(sock, lambda channel: Thinker(channel, config))


class Thinker(EngineHost):
    """Prompt building, generation and transcription, all requests at once."""

    def __init__(self, channel: Channel, config: ThinkerConfig) -> None:
        super().__init__(channel)
        self.config = config
        self.pool = Pool(config.pool)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._listener = Listener(self, self.pool, config.ears)

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from voicechat.models.embedded.thinker import ChatPrompt
        from voicechat.stages.bookkeeping import CONFIG_KEY
        from voicechat.stages.rows import keeper_ready

        config = self.config
        ears = self._listener.load()
        await keeper_ready(self.pool, config.place.on_gpu)
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=config.model_dir,
                dtype=config.dtype,
                max_model_len=config.max_model_len,
                max_num_seqs=config.max_num_seqs,
                kv_cache_memory_bytes=config.kv_cache_bytes,
                enable_prefix_caching=True,
                worker_cls="voicechat.stages.thinker_engine.ThinkerWorker",
                additional_config={
                    CONFIG_KEY: {
                        "pool": msgspec.to_builtins(config.pool),
                        "rows_device": config.place.rows_device,
                    }
                },
                disable_log_stats=True,
                generation_config="vllm",
                **engine_options(config.place, "voicechat.stages.thinker_engine.AckScheduler", embeddings=False),
            )
        )
        self.prompt = ChatPrompt(self._engine.get_tokenizer(), config.system_prompt)
        await ears
        self._listener.start()
        # The system turn's keys and values stay in the prefix cache from here on.
        for question in ("Hello!", "What is the capital of France?"):
            ids = self.prompt.ids([Turn("user", question)])
            async for _ in self._engine.generate(
                engine_prompt(ids),
                self._sampling(Generate(0, (), False, max_tokens=4), {}),
                f"warm-up-{question}",
            ):
                pass
        self.spawn(self.watch(self._engine), "watch")
        return {"seconds": round(time.monotonic() - started, 2), "max_model_len": config.max_model_len}

    def handle(self, message: Message) -> None:
        match message:
            case Generate():
                self._running[message.id] = self.spawn(self._generate(message), f"generate-{message.id}")
            case Transcribe():
                self._listener.listen(message)
            case Abort():
                if (task := self._running.get(message.id)) is not None:
                    self.cancel(task)
                self._listener.abort(message.id)
            case _:
                raise TypeError(f"not a message for the thinker: {message!r}")

    def _sampling(self, message: Generate, facts: dict[str, int]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        config = self.config
        return SamplingParams(
            max_tokens=message.max_tokens or config.default_max_tokens,
            temperature=config.temperature if message.temperature is None else message.temperature,
            top_p=config.top_p if message.top_p is None else message.top_p,
            repetition_penalty=config.repetition_penalty,
            seed=message.seed,
            stop=list(message.stop),
            output_kind=RequestOutputKind.DELTA,
            extra_args=facts,
        )

    async def _generate(self, message: Generate) -> None:
        from voicechat.stages.runner import client_error

        request_id, ack = f"{message.id}", 0
        try:
            ids = self.prompt.ids(as_text(message, self.config.system_prompt))
            room = self.config.max_model_len - len(ids)
            wanted = message.max_tokens or self.config.default_max_tokens
            if room < 1 or (message.max_tokens is not None and message.max_tokens > room):
                self.channel.send(self._too_long(message, len(ids)))
                return
            facts: dict[str, int] = {}
            if message.rows:
                ack = message.generation
                facts = {"slot": message.slot, "ack": ack, "first": len(ids) - 1}
                wanted = min(wanted, self.pool.spec.max_rows)
            message = msgspec.structs.replace(message, max_tokens=min(wanted, room))
            made, cached, reason = 0, 0, "abort"
            async for output in self._engine.generate(engine_prompt(ids), self._sampling(message, facts), request_id):
                part = output.outputs[0]
                cached = output.num_cached_tokens or cached
                made += len(part.token_ids)
                if part.token_ids or part.text:
                    # The rows of these tokens are written: the copy ran in the step that sampled them.
                    padding = ("",) * (len(part.token_ids) - 1)
                    self.channel.send(Piece(message.id, (*padding, part.text), time.monotonic_ns()))
                if part.finish_reason is not None:
                    reason = part.finish_reason
            self.channel.send(Written(message.id, reason, len(ids), cached, made))
        except asyncio.CancelledError:
            await self._engine.abort(request_id)
        except (ValueError, client_error()) as error:  # the template's and vLLM's word for a request that can't be run
            ack = 0  # the engine did not take it
            self.channel.send(Failed(message.id, str(error), invalid=True, param="messages"))
        finally:
            del self._running[message.id]
            self.channel.send(Released(message.id, ack))

    def _too_long(self, message: Generate, prompt: int) -> Failed:
        limit = self.config.max_model_len
        if prompt >= limit:
            text = f"This model's maximum context length is {limit} tokens, but the messages take {prompt}."
            return Failed(message.id, text, invalid=True, param="messages", code="context_length_exceeded")
        text = (
            f"max_tokens is too large: {message.max_tokens}. The maximum context length is {limit} tokens, "
            f"of which the messages take {prompt}."
        )
        return Failed(message.id, text, invalid=True, param="max_tokens", code="context_length_exceeded")

    async def close(self) -> None:
        self._listener.close()
        await super().close()
