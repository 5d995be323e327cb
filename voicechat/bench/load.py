"""``voicechat bench load``: more and more users in a closed loop, over REST and over realtime WebSocket.

Each step of ``--concurrency`` is run over each transport, and between any two of them the baseline (``--naive``: all
stages one after another in one process) answers questions, so that both meet the same machine. Typed questions over
REST; over WebSocket they are spoken in real time. ``--json`` prints one object:

``schema``    "voicechat-load/1"; ``kind``, ``command``, ``started``, ``machine``, ``model``, ``settings``,
              ``server_start_s`` as in :mod:`voicechat.bench.report`
``runs``      of each transport and number of users: ``figures``, ``stages``, ``totals``, ``handoff`` and
              ``loop_lag_ms`` as there (over WebSocket ``ttfa_s`` is from the response's creation), ``users``,
              ``good_users`` (users all of whose streams were good), ``gpus`` (of each: mean and p95 of the percent of
              time in use, most MiB in use), ``client_processes`` that the users were spread over, ``client_lag_ms`` of
              the latest of their event loops: where it is not small, the users were the bottleneck; ``row_faults``:
              rows that were read wrongly, and errors by text; ``profile``: null, or with ``--profile`` by process
              (server, thinker, talker, voicebox) where its time goes while the same users ask on: ``host`` as in
              :meth:`voicechat.stages.host.Host.profile` and ``engine`` as in :mod:`voicechat.stages.profile`
``naive``     null, or the baseline's ``facts``, ``figures``, ``stages`` and its ``throughput``
``ratios``    of each run: the throughput in seconds of sound a second, as a multiple of the baseline's
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import datetime
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from voicechat.bench.outcome import BenchError, Report, outcome
from voicechat.bench.questions import QUESTIONS, questions

if TYPE_CHECKING:
    import aiohttp

    from voicechat.bench.baseline import Baseline
    from voicechat.bench.chat_client import ChatClient
    from voicechat.bench.load_users import UserPlan, Users
    from voicechat.bench.loop import Outcome

SCHEMA = "voicechat-load/1"
TRANSPORTS = ("rest", "ws")
PROFILE_LEAD_S = 1.0
"""Seconds under load before a profile begins, and kept up after its end."""
PROFILE_S = 2.0
"""Seconds of timing in a profile."""
PROFILE_GPU_S = 0.3
"""Seconds in which a profile records what runs on the GPU; it may be 100,000 kernels a second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand's arguments."""
    from voicechat.bench.cli import add_server_arguments, positive

    parser.add_argument(
        "--concurrency", type=_counts, default=(1, 8, 32, 64), metavar="N,…", help="users at a time (1,8,32,64)"
    )
    parser.add_argument("--transport", choices=(*TRANSPORTS, "both"), default="both", help="(both)")
    parser.add_argument("--turns-each", type=positive, default=2, metavar="N", help="turns of each user (2)")
    parser.add_argument("--least", type=positive, default=8, metavar="N", help="fewest turns of a step (8)")
    parser.add_argument("--max-tokens", type=positive, default=64, metavar="N", help="longest answer (64)")
    parser.add_argument(
        "--silence-ms", type=positive, default=200, metavar="MS", help="ws: the pause that ends a turn (200)"
    )
    parser.add_argument("--naive", action="store_true", help="also run the models one stage after another, between")
    parser.add_argument(
        "--naive-turns", type=positive, default=2, metavar="N", help="turns of the baseline after each step (2)"
    )
    parser.add_argument(
        "--profile", action="store_true", help="after each step, see where the time goes under the same load"
    )
    parser.add_argument(
        "--client-processes", type=positive, metavar="N", help="processes of the users (by users and cores)"
    )
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="longest turn in seconds (180)")
    add_server_arguments(parser)


def _counts(text: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(","))
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError("numbers from 1 up, with commas between")
    return values


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0 if every turn went well, 1 if not, 2 if an option can't be used."""
    from voicechat.bench.load_report import as_text

    def failed(report: Report) -> bool:
        return any(run["totals"]["failed"] or run["row_faults"] for run in report["runs"])

    return outcome(options, lambda: _run(options), as_text, failed)


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    import aiohttp

    from voicechat.bench import cli
    from voicechat.bench.chat_client import ChatClient, ClientError
    from voicechat.bench.machine import machine_facts

    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = machine_facts()
    if options.profile:
        options.overrides = [*options.overrides, "server.profiling=true"]
    settings = cli.settings_of(options)
    transports = TRANSPORTS if options.transport == "both" else (options.transport,)
    sounds = await asyncio.to_thread(_sounds) if "ws" in transports else {}
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=60)
            )
        )
        base, start_s, key = await stack.enter_async_context(cli.running_server(options, settings, http))
        client = ChatClient(http, base, api_key=key)
        try:
            served = await client.look()
        except ClientError as error:
            raise BenchError(str(error)) from None
        baseline = await stack.enter_async_context(cli.running_baseline(options, settings, served))
        steps = _Steps(options, http, client, key, sounds, baseline)
        runs = [await steps.run(transport, users) for users in options.concurrency for transport in transports]
    naive = baseline.summary() if baseline is not None else None
    return {
        "schema": SCHEMA,
        "kind": "load",
        "command": shlex.join(["voicechat", *sys.argv[1:]]),
        "started": started,
        "settings": {
            "concurrency": list(options.concurrency),
            "turns_each": options.turns_each,
            "max_tokens": options.max_tokens,
            "silence_ms": options.silence_ms,
            "server": options.server,
            "overrides": list(options.overrides),
        },
        "machine": machine,
        "model": served,
        "server_start_s": start_s,
        "runs": runs,
        "naive": naive,
        "ratios": _ratios(runs, naive),
    }


def _sounds() -> dict[str, Any]:
    """Each question spoken, float32 mono at the WebSocket's rate."""
    from voicechat.bench.load_ws import RATE
    from voicechat.bench.spoken import NoVoice, speak

    try:
        return dict(zip(QUESTIONS, speak(QUESTIONS, RATE)[1], strict=True))
    except NoVoice as error:
        raise BenchError(str(error)) from None


def _ratios(runs: Sequence[dict[str, Any]], naive: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Throughput of each run beside the baseline's."""
    from voicechat.bench.report import ratio

    theirs = naive["throughput"]["audio_s_per_s"] if naive is not None else None
    return [
        {
            "transport": run["transport"],
            "users": run["users"],
            "throughput": ratio(run["totals"]["audio_s_per_s"], theirs),
        }
        for run in runs
    ]


class _Steps:
    """Runs one step after another."""

    def __init__(
        self,
        options: argparse.Namespace,
        http: aiohttp.ClientSession,
        client: ChatClient,
        api_key: str | None,
        sounds: dict[str, Any],
        baseline: Baseline | None,
    ) -> None:
        from voicechat.bench.load_watch import Gpus

        self._options = options
        self._http = http
        self._client = client
        self._api_key = api_key
        self._sounds = sounds
        self._baseline = baseline
        self._gpus = Gpus()
        self._warm = False

    async def run(self, transport: str, users: int) -> dict[str, Any]:
        """One step: ``users`` at a time over ``transport``, then the baseline's turns."""
        from voicechat.bench.cli import say, server_stats
        from voicechat.bench.load_users import Users, process_count
        from voicechat.bench.load_watch import watching

        options = self._options
        count = max(users * options.turns_each, options.least)
        texts = list(questions(count))
        processes = min(users, options.client_processes or process_count(users))
        say(f"{transport}: {users} users, {count} turns")
        async with Users.ready(self._plan(transport), users, processes) as askers:
            await askers.ask(texts[:users])  # every user once, not counted
            before = await server_stats(self._client)
            async with watching(self._gpus) as watched:
                outcome = await askers.ask(texts)
            after = await server_stats(self._client)
            lags = askers.lags
            profile = await self._profile(askers, outcome, count) if options.profile else None
        await self._ask_baseline(texts[: options.naive_turns])
        return {
            "transport": transport,
            "users": users,
            **_figures(outcome, before, after),
            "good_users": _good_users(outcome, users),
            "gpus": watched.gpus,
            "client_processes": processes,
            "client_lag_ms": {"p50": max(lag[0] for lag in lags), "p99": max(lag[1] for lag in lags)},
            "profile": profile,
        }

    async def _ask_baseline(self, texts: Sequence[str]) -> None:
        from voicechat.bench.loop import REST_S
        from voicechat.bench.turn import Question

        if self._baseline is None:
            return
        await asyncio.sleep(REST_S)
        if not self._warm:
            await self._baseline.warm_up(Question(texts[0]))
            self._warm = True
        for text in texts:
            await self._baseline.ask(Question(text))
        await asyncio.sleep(REST_S)

    async def _profile(self, users: Users, outcome: Outcome, count: int) -> dict[str, Any]:
        """Where the time goes while the users ask as many questions as keep them busy for long enough."""
        needed = PROFILE_LEAD_S + PROFILE_S + PROFILE_GPU_S
        more = max(1, round(count * (needed + PROFILE_LEAD_S) / max(outcome.wall_s, 0.1)))
        asking = asyncio.create_task(users.ask(list(questions(more))))
        await asyncio.sleep(PROFILE_LEAD_S)
        path = f"{self._client.base}/v1/profile?seconds={PROFILE_S}&gpu_seconds={PROFILE_GPU_S}"
        async with self._http.post(path, headers=self._client.headers) as response:
            found: dict[str, Any] = {"server": {"error": f"HTTP {response.status}: the server has to allow it"}}
            if response.status == 200:
                found = await response.json()
        await asking
        return found

    def _plan(self, transport: str) -> UserPlan:
        from voicechat.bench.load_users import UserPlan

        options = self._options
        return UserPlan(
            transport,
            self._client.base,
            self._api_key,
            options.max_tokens,
            options.silence_ms,
            options.timeout,
            self._sounds if transport == "ws" else {},
        )


def _figures(outcome: Outcome, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    """The measured part of a run."""
    from voicechat.bench import report

    good = [turn for turn in outcome.turns if turn.error is None]
    figures = report.turn_figures(good)
    return {
        "figures": figures,
        "stages": report.summaries(turn.stages for turn in good),
        "totals": report.totals(outcome),
        "handoff": report.handoff(outcome.turns, before, after, report.median(figures, "ttfa_s")),
        "loop_lag_ms": after["loop_lag_ms"] if after is not None else None,
        "row_faults": after["pool"].get("row_faults", 0) if after is not None else None,
        "errors": dict(collections.Counter(turn.error for turn in outcome.turns if turn.error is not None)),
    }


def _good_users(outcome: Outcome, users: int) -> int:
    """How many users at a time had nothing but good streams, by the share of streams that were."""
    played = [turn.continuity.good for turn in outcome.turns if turn.continuity is not None]
    return int(users * sum(played) / len(outcome.turns)) if outcome.turns else 0
