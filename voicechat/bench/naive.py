"""The baseline's process: spawned, on two threads, idle except in its own turns."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from voicechat.assemble import AssembledPaths
from voicechat.bench.outcome import BenchError
from voicechat.bench.turn import Question
from voicechat.config import Settings
from voicechat.contract.sound import EARS_RATE
from voicechat.media.resample import resample

if TYPE_CHECKING:
    from voicechat.bench.naive_models import NaiveAnswer, NaiveConfig

THREADS = 2
_START_S = 300.0
_STOP_S = 5.0


class NaiveError(BenchError):
    """The baseline could not be run; ``str()`` says why."""


def naive_config(settings: Settings, paths: AssembledPaths, *, threads: int = THREADS) -> NaiveConfig:
    """The server's settings for the baseline. ``paths`` are those without quantisation. Needs torch."""
    from voicechat.bench.naive_models import NaiveConfig
    from voicechat.models.embedded.weights import load_voice_config

    folders, mine = paths.folders, settings.talker
    voice = load_voice_config(folders["weights"])
    return NaiveConfig(
        thinker_dir=str(folders["thinker"]),
        weights_dir=str(folders["weights"]),
        ears_dir=str(paths.ears),
        thinker=paths.facts.talker["thinker"],
        system_prompt=paths.facts.system_prompt,
        max_tokens=settings.thinker.default_max_tokens,
        temperature=settings.thinker.temperature,
        top_p=settings.thinker.top_p,
        repetition_penalty=settings.thinker.repetition_penalty,
        talker_temperature=voice.sampling.temperature if mine.temperature is None else mine.temperature,
        talker_top_k=voice.sampling.top_k if mine.top_k is None else mine.top_k,
        ears_beam_size=settings.ears.beam_size,
        threads=threads,
        device=settings.device,
    )


def _run(connection: Connection, settings: Settings, paths: AssembledPaths) -> None:
    """Body of the process: questions in, answers (or the text of a fault) out, until None comes."""
    from voicechat.stages.host import die_with_parent

    die_with_parent()
    try:
        from voicechat.bench.naive_models import OneAfterAnother

        models = OneAfterAnother(naive_config(settings, paths))
        connection.send(models.facts)
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

    async def ask(self, question: Question, max_tokens: int | None, timeout_s: float) -> NaiveAnswer:
        """Answer one question, aloud if it has sound."""
        sound = None if question.sound is None else resample(question.sound, question.rate, EARS_RATE)
        self._ours.send((question.text, sound, max_tokens))
        answer: NaiveAnswer = await self._receive(timeout_s)
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
