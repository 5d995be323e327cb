"""The Thinker's process: one vLLM engine that writes replies, and on the CPU the ears, if there are any."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any

import msgspec
import numpy as np

from voicechat.contract.channel import Channel
from voicechat.contract.family import Prompt, RowLayout
from voicechat.contract.messages import (
    Abort,
    Attach,
    Attached,
    Failed,
    Generate,
    Message,
    Piece,
    Released,
    Transcribe,
    Turn,
    Written,
)
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.requests import AudioPart, ImagePart
from voicechat.models.registry import find_family
from voicechat.stages.ears import EarsSpec, Listener
from voicechat.stages.host import prepare_process, run_host
from voicechat.stages.placement import Placement
from voicechat.stages.vllm.host import EngineHost, prepare_engine

log = logging.getLogger(__name__)


class ThinkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the Thinker's process needs to know. ``ears`` None: not in this process.

    ``model``: :attr:`voicechat.contract.family.Facts.thinker`; ``rows_begin``: of its :class:`RowLayout`.
    """

    family: str
    model: dict[str, Any]
    rows_begin: str
    ears: EarsSpec | None
    pool: PoolSpec
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
        self._rows = RowLayout(config.pool.hidden_size, config.rows_begin)  # type: ignore[arg-type]
        self._running: dict[int, asyncio.Task[None]] = {}
        self._media: dict[int, AudioPart | ImagePart] = {}
        self._listener = Listener(self, self.pool, config.ears)

    async def warm_up(self) -> dict[str, str | int | float]:
        started = time.monotonic()
        from voicechat.stages.vllm.engine import EngineSpec, start_engine

        config = self.config
        ears = self._listener.load()
        await self.keeper_ready(self.pool, config.place)
        model = find_family(config.family).thinker(config.model)
        self._engine = start_engine(
            model.engine,
            EngineSpec(
                role="thinker",
                family=config.family,
                model=config.model,
                pool=config.pool,
                place=config.place,
                max_num_seqs=config.max_num_seqs,
                max_model_len=config.max_model_len,
                kv_cache_bytes=config.kv_cache_bytes,
                prefix_caching=config.rows_begin != "prompt",  # what a prefix cache holds is not computed: no rows
                facts={"rows_device": config.place.rows_device},
            ),
        )
        self.prompter = model.prompter(self._engine.get_tokenizer(), config.system_prompt)
        await ears
        self._listener.start()
        # The system turn's keys and values stay in the prefix cache from here on.
        for question in ("Hello!", "What is the capital of France?"):
            message = Generate(0, (Turn("user", question),), False, max_tokens=4)
            prompt, _ = await self._rendered(self.prompter.prompt(message, {}))
            async for _ in self._engine.generate(prompt, self._sampling(message, {}), f"warm-up-{question}"):
                pass
        self.spawn(self.watch(self._engine), "watch")
        return {"seconds": round(time.monotonic() - started, 2), "max_model_len": config.max_model_len}

    async def _rendered(self, prompt: Prompt) -> tuple[Any, int]:
        from voicechat.stages.vllm.engine import rendered

        return await rendered(self._engine, prompt)

    def handle(self, message: Message) -> None:
        match message:
            case Generate():
                self._running[message.id] = self.spawn(self._generate(message), f"generate-{message.id}")
            case Attach():
                self._attach(message)
            case Transcribe():
                self._listener.listen(message)
            case Abort():
                self._media.pop(message.id, None)
                if (task := self._running.get(message.id)) is not None:
                    self.cancel(task)
                self._listener.abort(message.id)
            case _:
                raise TypeError(f"not a message for the thinker: {message!r}")

    def _attach(self, message: Attach) -> None:
        """Copy a sound or an image out of its bay, which is free from then on."""
        data = self.pool.read_bay(message.bay, message.size)
        if message.kind == "sound":
            self._media[message.id] = AudioPart(np.frombuffer(data, np.float32))
        else:
            self._media[message.id] = ImagePart(data)
        self.channel.send(Attached(message.id))

    def _sampling(self, message: Generate, facts: dict[str, int]) -> Any:
        from voicechat.stages.vllm.engine import sampling_params

        config = self.config
        return sampling_params(
            facts,
            max_tokens=message.max_tokens or config.default_max_tokens,
            temperature=config.temperature if message.temperature is None else message.temperature,
            top_p=config.top_p if message.top_p is None else message.top_p,
            repetition_penalty=config.repetition_penalty,
            seed=message.seed,
            stop=list(message.stop),
        )

    async def _generate(self, message: Generate) -> None:
        from voicechat.stages.vllm.adapter import client_error

        request_id, ack = f"{message.id}", 0
        try:
            media = self._take_media(message)
            if media is None:
                self.channel.send(Failed(message.id, "A sound or an image of the request was lost. Please try again."))
                return
            asked = self.prompter.prompt(message, media)
            prompt, length = await self._rendered(asked)
            room = self.config.max_model_len - length
            wanted = message.max_tokens or self.config.default_max_tokens
            if room < 1 or (message.max_tokens is not None and message.max_tokens > room):
                self.channel.send(self._too_long(message, length))
                return
            facts: dict[str, int] = {}
            if message.rows:
                first, most = self._rows.first(length), self.pool.spec.max_rows
                if first == 0:
                    most -= length
                    if most < 1:
                        self.channel.send(self._too_long(message, length))
                        return
                ack = message.generation
                facts = {"slot": message.slot, "ack": ack, "first": first}
                wanted = min(wanted, most)
            message = msgspec.structs.replace(message, max_tokens=min(wanted, room))
            made, cached, reason, note = 0, 0, "abort", asked.note
            async for output in self._engine.generate(prompt, self._sampling(message, facts), request_id):
                part = output.outputs[0]
                cached = output.num_cached_tokens or cached
                made += len(part.token_ids)
                if part.token_ids or part.text:
                    # The rows of these tokens are written: the copy ran in the step that sampled them.
                    padding = ("",) * (len(part.token_ids) - 1)
                    self.channel.send(Piece(message.id, (*padding, part.text), time.monotonic_ns(), note))
                    note = b""
                if part.finish_reason is not None:
                    reason = part.finish_reason
            self.channel.send(Written(message.id, reason, length, cached, made))
        except asyncio.CancelledError:
            await self._engine.abort(request_id)
        except (ValueError, client_error()) as error:  # the template's and vLLM's word for a request that can't be run
            ack = 0  # the engine did not take it
            self.channel.send(Failed(message.id, str(error), invalid=True, param="messages"))
        finally:
            del self._running[message.id]
            self.channel.send(Released(message.id, ack))

    def _take_media(self, message: Generate) -> dict[int, AudioPart | ImagePart] | None:
        """The sounds and images that a request's turns name; they are used up. None if they were lost."""
        numbers = [medium.number for turn in message.turns for medium in turn.media]
        found = {number: self._media.pop(number) for number in numbers if number in self._media}
        return found if len(found) == len(numbers) else None

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
