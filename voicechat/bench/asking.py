"""``voicechat bench rest|webrtc``: users in a closed loop against a server, and the figures of what they saw.

``--turns`` is the number of all turns together, shared out among ``--concurrency`` users as each becomes free. See
:mod:`voicechat.bench.report` for the object that ``--json`` prints.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Coroutine, Sequence
from typing import Any

from voicechat.bench import report, spoken
from voicechat.bench.askers import SOUND_RATE, Asker, LineAsker, RestAsker
from voicechat.bench.baseline import Baseline, running_baseline
from voicechat.bench.loop import closed_loop, interleaved
from voicechat.bench.outcome import BenchError, Report, outcome
from voicechat.bench.questions import QUESTIONS, questions
from voicechat.bench.served import Progress, Served, say, serving
from voicechat.bench.turn import Question

_BUSY = 0.25
"""Load for each core from which on a machine counts as busy with something else."""


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0 if every turn went well, 1 if not, 2 if an option can't be used."""

    def begin() -> Coroutine[Any, Any, Report]:
        if options.kind == "webrtc" and options.quality:
            raise BenchError("--quality is of REST requests; a call always puts latency first", 2)
        if options.kind == "rest" and options.one_call:
            raise BenchError("--one-call is of calls; REST requests have none", 2)
        return _run(options)

    return outcome(options, begin, report.as_text, lambda made: bool(made["totals"]["failed"]))


async def _run(options: argparse.Namespace) -> Report:
    asked, voice = _questions(options)
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(options))
        if served.machine["load_before"] > _BUSY * served.machine["cores"]:
            load = served.machine["load_before"]
            say(f"this machine is busy (load {load}): its own figures will be better than these")
        baseline = await stack.enter_async_context(running_baseline(options, served))
        users = [_asker(options, served) for _ in range(options.concurrency)]
        for user in users:
            stack.push_async_callback(user.close)
        figures = await _measure(options, served, users, asked, baseline)
    settings = {
        "users": options.concurrency,
        "turns": options.turns,
        "warmup": options.warmup,
        "spoken": voice is not None,
        "voice": voice,
        "latency_first": not options.quality,
        "max_tokens": options.max_tokens,
        "naive": options.naive,
        "one_call": options.one_call,
        "server": options.server,
        "overrides": list(options.overrides),
    }
    return {**served.report(report.SCHEMA, options.kind, settings), **figures}


def _questions(options: argparse.Namespace) -> tuple[list[Question], str | None]:
    """Questions of all turns, warm-up first, and who speaks them (None: they are typed)."""
    texts = list(questions(max(options.warmup, options.concurrency if options.warmup else 0) + options.turns))
    if options.kind == "rest" and not options.spoken:
        return [Question(text) for text in texts], None
    voice, sounds = spoken.speak(QUESTIONS[: len(texts)], SOUND_RATE, options.voice)
    said = dict(zip(QUESTIONS, sounds, strict=False))
    return [Question(text, said[text], SOUND_RATE) for text in texts], voice


def _asker(options: argparse.Namespace, served: Served) -> Asker:
    client = served.client
    if options.kind == "rest":
        return RestAsker(
            client, latency_first=not options.quality, max_tokens=options.max_tokens, timeout_s=options.timeout
        )
    from voicechat.bench.realtime_rtc import RtcLine

    served.reach_loopback()
    session = {"type": "realtime", "max_output_tokens": options.max_tokens or "inf"}
    call = functools.partial(RtcLine.open, served.http, client.base, headers=client.headers, session=session)
    return LineAsker(call, timeout_s=options.timeout, one_call=options.one_call)


async def _measure(
    options: argparse.Namespace,
    served: Served,
    users: Sequence[Asker],
    asked: Sequence[Question],
    baseline: Baseline | None,
) -> Report:
    """Warm up, run, and make the measured part of the report."""
    warmup, timed = asked[: -options.turns], asked[-options.turns :]
    if warmup:
        say(f"warming up: {len(warmup)} turns")
        await closed_loop(users, warmup)
        if baseline is not None:
            await baseline.warm_up(warmup[0])
    before = await served.stats()
    progress = Progress("", "turns", options.turns)
    if baseline is not None:
        found = await interleaved(users, timed, baseline.ask, progress.tell)
    else:
        found = await closed_loop(users, timed, progress.tell)
    return {
        **report.measured(found, before, await served.stats()),
        "naive": baseline.report([turn for turn in found.turns if turn.error is None]) if baseline else None,
        "turns": [turn.to_dict() for turn in found.turns],
    }
