"""``voicechat bench rest|webrtc``: users in a closed loop against a server, and the figures of what they saw;
``voicechat bench realtime`` is in :mod:`voicechat.bench.realtime`, ``load`` in :mod:`voicechat.bench.load`, ``voice``
in :mod:`voicechat.bench.voice`.

Without ``--server`` a server is started for the run on a free port of this machine, and stopped after it. ``--turns``
is the number of all turns together, shared out among ``--concurrency`` users as each becomes free. See
:mod:`voicechat.bench.report` for the object that ``--json`` prints.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import shlex
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voicechat.bench.outcome import BenchError, Report, outcome
from voicechat.bench.questions import QUESTIONS, questions

if TYPE_CHECKING:
    import aiohttp

    from voicechat.bench.askers import Asker
    from voicechat.bench.baseline import Baseline
    from voicechat.bench.chat_client import ChatClient
    from voicechat.bench.turn import Question
    from voicechat.config import Settings

API_KEY = "VOICECHAT_API_KEY"
"""Environment variable with the bearer token for ``--server``."""

_BUSY = 0.25
"""Load for each core from which on a machine counts as busy with something else."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand's arguments, for each kind of benchmark its own."""
    from voicechat.bench import load, voice

    kinds = parser.add_subparsers(dest="kind", metavar="kind", required=True)
    _add_user_arguments(kinds.add_parser("rest", help="users over REST"))
    _add_user_arguments(kinds.add_parser("webrtc", help="users in calls over WebRTC"))
    _add_realtime_arguments(kinds.add_parser("realtime", help="a scripted set of recordings, over realtime sessions"))
    load.add_arguments(kinds.add_parser("load", help="more and more users, over REST and WebSocket"))
    voice.add_arguments(kinds.add_parser("voice", help="the voices, judged on held-out texts beside their teachers"))


def _add_user_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the kinds with users in a closed loop."""
    parser.add_argument("--concurrency", type=positive, default=1, metavar="N", help="users at a time (1)")
    parser.add_argument(
        "--turns", type=positive, default=20, metavar="M", help="timed turns of all users together (20)"
    )
    parser.add_argument(
        "--warmup",
        type=_count,
        default=2,
        metavar="K",
        help="turns before, not timed; at least one of each user, 0 for none (2)",
    )
    parser.add_argument(
        "--naive", action="store_true", help="also run the models one stage after another, turn about with the server"
    )
    parser.add_argument("--spoken", action="store_true", help="ask aloud over REST too (WebRTC always does)")
    parser.add_argument(
        "--voice", choices=("hibari", "espeak-ng"), help="who speaks the questions (the first that is installed)"
    )
    parser.add_argument("--quality", action="store_true", help="rest: ask for the best sound rather than the soonest")
    parser.add_argument("--one-call", action="store_true", help="webrtc: one call for all turns of a user")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="longest answer in the Thinker's tokens")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="longest turn in seconds (180)")
    add_server_arguments(parser)


def _add_realtime_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the scripted set."""
    parser.add_argument(
        "--transport", choices=("ws", "webrtc", "both"), default="both", help="what the sessions go over (both)"
    )
    parser.add_argument(
        "--turns", type=positive, metavar="N", help="turns over each transport, of all kinds (36); with --only: all"
    )
    parser.add_argument("--only", default="", metavar="NAME", help="only turns whose name begins so, such as pause")
    parser.add_argument("--warmup", type=_count, default=1, metavar="K", help="questions before, not counted (1)")
    parser.add_argument(
        "--detection", choices=("semantic_vad", "server_vad"), default="semantic_vad", help="how turns are detected"
    )
    parser.add_argument("--eagerness", choices=("low", "medium", "high", "auto"), help="of semantic_vad (auto)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the sound and the events of every turn")
    add_server_arguments(parser)


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server is measured, and how that is told."""
    parser.add_argument("--model", metavar="NAME", help="a name in configs/ or a YAML file; default embedded")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what the models run on, without --server")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="any setting; may be repeated"
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"measure this running server; its key, if it needs one, is taken from ${API_KEY}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def positive(text: str) -> int:
    """A whole number from 1 up."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0 if every turn went well (of realtime: if it ran), 1 if not, 2 if an option can't be used."""
    from voicechat.bench.report import as_text

    if options.kind == "realtime":
        from voicechat.bench import realtime

        return realtime.main(options)
    if options.kind == "load":
        from voicechat.bench import load

        return load.main(options)
    if options.kind == "voice":
        from voicechat.bench import voice

        return voice.main(options)

    def begin() -> Coroutine[Any, Any, Report]:
        if options.kind == "webrtc" and options.quality:
            raise BenchError("--quality is of REST requests; a call always puts latency first", 2)
        if options.kind == "rest" and options.one_call:
            raise BenchError("--one-call is of calls; REST requests have none", 2)
        return _run(options)

    return outcome(options, begin, as_text, lambda report: bool(report["totals"]["failed"]))


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    import aiohttp

    from voicechat.bench.chat_client import ChatClient, ClientError
    from voicechat.bench.machine import machine_facts

    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = machine_facts()
    if machine["load_before"] > _BUSY * machine["cores"]:
        say(f"this machine is busy (load {machine['load_before']}): its own figures will be better than these")
    settings = settings_of(options)
    asked, voice = _questions(options)
    connector = aiohttp.TCPConnector(limit=0)
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        )
        base, start_s, key = await stack.enter_async_context(running_server(options, settings, http))
        client = ChatClient(http, base, api_key=key)
        try:
            served = await client.look()
        except ClientError as error:
            raise BenchError(str(error)) from None
        baseline = await stack.enter_async_context(running_baseline(options, settings, served))
        users = [_asker(options, http, base, client) for _ in range(options.concurrency)]
        for user in users:
            stack.push_async_callback(user.close)
        figures = await _measure(options, client, users, asked, baseline)
    report = {
        "schema": "",
        "kind": options.kind,
        "command": shlex.join(["voicechat", *sys.argv[1:]]),
        "started": started,
        "settings": {
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
        },
        "machine": machine,
        "model": served,
        "server_start_s": start_s,
    }
    return {**report, **figures}


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings of the server that is to be started."""
    from voicechat.config import ConfigError, load_settings

    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"device={options.device}")
    try:
        return load_settings(options.model, overrides=overrides)
    except ConfigError as error:
        raise BenchError(str(error), 2) from None


def _questions(options: argparse.Namespace) -> tuple[list[Question], str | None]:
    """Questions of all turns, warm-up first, and who speaks them (None: they are typed)."""
    from voicechat.bench.turn import Question

    texts = list(questions(max(options.warmup, options.concurrency if options.warmup else 0) + options.turns))
    if options.kind == "rest" and not options.spoken:
        return [Question(text) for text in texts], None
    from voicechat.bench.askers import SOUND_RATE
    from voicechat.bench.spoken import NoVoice, speak

    try:
        voice, sounds = speak(QUESTIONS[: len(texts)], SOUND_RATE, options.voice)
    except NoVoice as error:
        raise BenchError(str(error)) from None
    said = dict(zip(QUESTIONS, sounds, strict=False))
    return [Question(text, said[text], SOUND_RATE) for text in texts], voice


@contextlib.asynccontextmanager
async def running_server(
    options: argparse.Namespace, settings: Settings, http: aiohttp.ClientSession
) -> AsyncIterator[tuple[str, float | None, str | None]]:
    """Address of the server, seconds that it took to start if it was started here, and its key."""
    from voicechat.bench.chat_client import ClientError
    from voicechat.bench.child import ServerError, child_server

    if options.server is not None:
        yield options.server.rstrip("/"), None, os.environ.get(API_KEY)
        return
    from voicechat.assemble import AssembleError, assemble

    arguments = [word for override in options.overrides for word in ("--set", override)]
    for name in ("model", "device"):
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{name}", value]
    key = settings.server.api_keys[0] if settings.server.api_keys else None
    try:
        await asyncio.to_thread(assemble, settings)
        say(f"starting {settings.model.name}; this takes a while")
        async with child_server(arguments, http=http, timeout_s=300.0) as (base, start_s):
            yield base, start_s, key
    except (AssembleError, ServerError, ClientError) as error:
        raise BenchError(str(error)) from None


@contextlib.asynccontextmanager
async def running_baseline(
    options: argparse.Namespace, settings: Settings, served: str
) -> AsyncIterator[Baseline | None]:
    """The models one stage after another, loaded, if ``--naive`` asks for them."""
    if not options.naive:
        yield None
        return
    from voicechat.bench.baseline import Baseline
    from voicechat.bench.naive import NaiveError

    if settings.model.name != served:
        raise BenchError(f"the server serves {served}, so the baseline needs --model {served}", 2)
    say("loading the models for the baseline")
    try:
        async with Baseline.running(settings, options.max_tokens, options.timeout) as baseline:
            yield baseline
    except NaiveError as error:
        raise BenchError(str(error)) from None


def _asker(options: argparse.Namespace, http: aiohttp.ClientSession, base: str, client: ChatClient) -> Asker:
    from voicechat.bench.askers import CallAsker, RestAsker

    if options.kind == "rest":
        return RestAsker(
            client, latency_first=not options.quality, max_tokens=options.max_tokens, timeout_s=options.timeout
        )
    reach_loopback(base)
    return CallAsker(
        http,
        base,
        headers=client.headers,
        max_tokens=options.max_tokens,
        timeout_s=options.timeout,
        one_call=options.one_call,
    )


def reach_loopback(base: str) -> None:
    """Let this process's peer connections use 127.0.0.1, which aiortc would not, if the server is there."""
    from urllib.parse import urlsplit

    from voicechat.media.ice import IceSettings, use_host_addresses

    host = urlsplit(base).hostname or ""
    if host == "localhost" or host.startswith("127."):
        use_host_addresses(IceSettings(interfaces=("none",), loopback=True))


async def _measure(
    options: argparse.Namespace,
    client: ChatClient,
    users: Sequence[Asker],
    asked: Sequence[Question],
    baseline: Baseline | None,
) -> dict[str, Any]:
    """Warm up, run, and make the measured part of the report."""
    from voicechat.bench import report
    from voicechat.bench.loop import closed_loop, interleaved

    warmup, timed = asked[: -options.turns], asked[-options.turns :]
    if warmup:
        say(f"warming up: {len(warmup)} turns")
        await closed_loop(users, warmup)
        if baseline is not None:
            await baseline.warm_up(warmup[0])
    before = await server_stats(client)
    if baseline is not None:
        outcome = await interleaved(users, timed, baseline.ask, _progress(options.turns))
    else:
        outcome = await closed_loop(users, timed, _progress(options.turns))
    after = await server_stats(client)
    good = [turn for turn in outcome.turns if turn.error is None]
    figures = report.turn_figures(good)
    return {
        "schema": report.SCHEMA,
        "figures": figures,
        "stages": report.summaries(turn.stages for turn in good),
        "totals": report.totals(outcome),
        "handoff": report.handoff(outcome.turns, before, after, report.median(figures, "ttfa_s")),
        "loop_lag_ms": after["loop_lag_ms"] if after is not None else None,
        "naive": baseline.report(good) if baseline is not None else None,
        "turns": [turn.to_dict() for turn in outcome.turns],
    }


async def server_stats(client: ChatClient) -> dict[str, Any] | None:
    """What the server tells of itself; None if it does not."""
    from voicechat.bench.chat_client import ClientError

    try:
        stats: dict[str, Any] = await client.get_json("/v1/stats")
    except ClientError as error:
        say(f"no figures from inside the server: {error}")
        return None
    return stats


def _progress(total: int) -> Any:
    def told(count: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{count} of {total} turns", end="\n" if count == total else "", file=sys.stderr, flush=True)

    return told


def say(text: str) -> None:
    """Tell whoever watches."""
    print(text, file=sys.stderr, flush=True)
