"""The baseline's process: spawned, on two threads, idle except in its own turns."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

from voicechat.assemble import AssembledPaths
from voicechat.bench.outcome import BenchError
from voicechat.bench.turn import Question
from voicechat.config import Settings
from voicechat.contract.family import PlainAnswer, PlainSpec
from voicechat.contract.sound import EARS_RATE
from voicechat.media.resample import resample
from voicechat.models.registry import find_family

THREADS = 2
_START_S = 300.0
_STOP_S = 5.0


class NaiveError(BenchError):
    """The baseline could not be run; ``str()`` says why."""


def plain_spec(settings: Settings, paths: AssembledPaths, *, threads: int = THREADS) -> PlainSpec:
    """The server's settings for the baseline. ``paths`` are those without quantisation."""
    mine, facts = settings.talker, paths.facts
    asked = {"temperature": mine.temperature, "top_k": mine.top_k}
    return PlainSpec(
        thinker=facts.thinker,
        talker=facts.talker,
        ears_dir=str(paths.ears),
        system_prompt=facts.system_prompt,
        max_tokens=settings.thinker.default_max_tokens,
        temperature=settings.thinker.temperature,
        top_p=settings.thinker.top_p,
        repetition_penalty=settings.thinker.repetition_penalty,
        sampling={**facts.sampling, **{name: value for name, value in asked.items() if value is not None}},
        ears_beam_size=settings.ears.beam_size,
        threads=threads,
        device=settings.device,
    )


def _run(connection: Connection, settings: Settings, paths: AssembledPaths) -> None:
    """Body of the process: questions in, answers (or the text of a fault) out, until None comes."""
    from voicechat.stages.host import die_with_parent

    die_with_parent()
    try:
        models = find_family(settings.model.family).plain(plain_spec(settings, paths))
        connection.send(dict(models.facts))
        while (work := connection.recv()) is not None:
            connection.send(models.answer(*work))
    except EOFError:
        return  # the benchmark is gone
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        raise


class Naive:
    """The baseline as the benchmark sees it; one question at a time. All methods raise :class:`NaiveError`."""

    def __init__(self, settings: Settings, paths: AssembledPaths) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_run, args=(theirs, settings, paths), name="voicechat-naive", daemon=True
        )
        self._process.start()
        theirs.close()
        self.facts: dict[str, Any] = {}

    async def start(self) -> None:
        """Wait until the models are loaded."""
        self.facts = await self._receive(_START_S)

    async def ask(self, question: Question, max_tokens: int | None, timeout_s: float) -> PlainAnswer:
        """Answer one question, aloud if it has sound."""
        sound = None if question.sound is None else resample(question.sound, question.rate, EARS_RATE)
        self._ours.send((question.text, sound, max_tokens))
        answer: PlainAnswer = await self._receive(timeout_s)
        return answer

    async def _receive(self, timeout_s: float) -> Any:
        def receive() -> Any:
            if not self._ours.poll(timeout_s):
                raise NaiveError(f"the baseline did not answer within {timeout_s:g} s")
            try:
                return self._ours.recv()
            except (EOFError, ConnectionError):
                raise NaiveError("the baseline's process died") from None

        received = await asyncio.get_running_loop().run_in_executor(None, receive)
        if isinstance(received, str):
            raise NaiveError(f"the baseline failed: {received}")
        return received

    def stop(self) -> None:
        """End the process."""
        try:
            self._ours.send(None)
        except (BrokenPipeError, OSError):
            pass  # it has ended already
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._ours.close()
