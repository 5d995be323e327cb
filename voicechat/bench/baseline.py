"""The baseline's turns in a benchmark: asked between the server's, compared with them in the end."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from voicechat.bench.measures import real_time_factor, summarize
from voicechat.bench.naive import Naive
from voicechat.bench.outcome import BenchError
from voicechat.bench.report import ratio, summaries
from voicechat.bench.served import Served, assembled, say
from voicechat.bench.turn import Question, Turn
from voicechat.config import Settings

if TYPE_CHECKING:
    from voicechat.contract.family import PlainAnswer

UNQUANTISED = {"quantization": "none"}


def unquantised(settings: Settings) -> Settings:
    """The same models without quantisation."""
    model = settings.model
    parts = {name: part for name, part in model if "quantization" in getattr(type(part), "model_fields", {})}
    plain = model.model_copy(update={name: part.model_copy(update=UNQUANTISED) for name, part in parts.items()})
    return settings.model_copy(update={"model": plain})


@contextlib.asynccontextmanager
async def running_baseline(options: argparse.Namespace, served: Served) -> AsyncIterator[Baseline | None]:
    """The models one stage after another, loaded, if ``--naive`` asks for them. Raises :class:`BenchError`."""
    if not options.naive:
        yield None
        return
    if served.settings.model.name != served.model:
        raise BenchError(f"the server serves {served.model}, so the baseline needs --model {served.model}", 2)
    say("loading the models for the baseline")
    plain = unquantised(served.settings)
    naive = Naive(plain, await assembled(plain))
    try:
        await naive.start()
        yield Baseline(naive, options.max_tokens, options.timeout)
    finally:
        naive.stop()


class Baseline:
    """Asks the baseline's process and keeps its answers."""

    def __init__(self, naive: Naive, max_tokens: int | None, timeout_s: float) -> None:
        self._naive = naive
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._answers: list[tuple[Question, PlainAnswer]] = []

    async def warm_up(self, question: Question) -> None:
        """Answer a question that does not count."""
        await self._naive.ask(question, self._max_tokens, self._timeout_s)

    async def ask(self, question: Question) -> None:
        """Answer a question that counts."""
        answer = await self._naive.ask(question, self._max_tokens, self._timeout_s)
        self._answers.append((question, answer))

    def summary(self) -> dict[str, Any]:
        """The baseline by itself: figures, and what it makes in a second of its own time."""
        answers = [answer for _, answer in self._answers]
        busy = sum(answer.total_s for answer in answers)
        return {
            **self._measured(),
            "throughput": {
                "audio_s_per_s": sum(answer.audio_s for answer in answers) / busy if busy else 0.0,
                "requests_per_s": len(answers) / busy if busy else 0.0,
            },
        }

    def report(self, turns: Sequence[Turn]) -> dict[str, Any]:
        """The baseline's part of the report, compared with the server's ``turns``."""
        theirs = summarize(answer.total_s for _, answer in self._answers)
        ours = summarize(turn.figures.get("ttfa_s") for turn in turns)
        compared, waited = "TTFA", 0.0
        if ours is None:
            compared = "voice-to-voice, with the same silence waited for"
            ours = summarize(turn.figures.get("voice_to_voice_s") for turn in turns)
            silence = summarize(turn.stages.get("endpointing") for turn in turns)
            waited = silence.p50 if silence is not None else 0.0
        return {
            **self._measured(),
            "compared": compared,
            "ratio": ratio(ours.p50 if ours else None, theirs.p50 + waited if theirs else None),
            "turns": [{"question": question.text, **asdict(answer)} for question, answer in self._answers],
        }

    def _measured(self) -> dict[str, Any]:
        return {
            "facts": self._naive.facts,
            "figures": summaries(_figures(answer) for _, answer in self._answers),
            "stages": summaries(answer.times for _, answer in self._answers),
        }


def _figures(answer: PlainAnswer) -> dict[str, float]:
    figures = {"ttfa_s": answer.total_s, "audio_s": answer.audio_s}
    factor = real_time_factor(answer.total_s, answer.audio_s)
    return figures if factor is None else {**figures, "rtf": factor}
