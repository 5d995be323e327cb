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
from collections.abc import Sequence
from typing import Any

from voicechat.bench import report, spoken
from voicechat.bench.askers import SOUND_RATE
from voicechat.bench.baseline import Baseline, running_baseline
from voicechat.bench.load_report import as_text
from voicechat.bench.load_users import UserPlan, Users, process_count
from voicechat.bench.load_watch import Gpus, watching
from voicechat.bench.loop import REST_S, Outcome
from voicechat.bench.outcome import Report, outcome
from voicechat.bench.questions import QUESTIONS, questions
from voicechat.bench.served import Served, say, serving
from voicechat.bench.turn import Question

SCHEMA = "voicechat-load/1"
TRANSPORTS = ("rest", "ws")
PROFILE_LEAD_S = 1.0
"""Seconds under load before a profile begins, and kept up after its end."""
PROFILE_S = 2.0
"""Seconds of timing in a profile."""
PROFILE_GPU_S = 0.3
"""Seconds in which a profile records what runs on the GPU; it may be 100,000 kernels a second."""


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0 if every turn went well, 1 if not, 2 if an option can't be used."""

    def failed(made: Report) -> bool:
        return any(run["totals"]["failed"] or run["row_faults"] for run in made["runs"])

    return outcome(options, lambda: _run(options), as_text, failed)


async def _run(options: argparse.Namespace) -> Report:
    if options.profile:
        options.overrides = [*options.overrides, "server.profiling=true"]
    transports = TRANSPORTS if options.transport == "both" else (options.transport,)
    sounds: dict[str, Any] = {}
    if "ws" in transports:
        _, made = await asyncio.to_thread(spoken.speak, QUESTIONS, SOUND_RATE)
        sounds = dict(zip(QUESTIONS, made, strict=True))
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(options))
        baseline = await stack.enter_async_context(running_baseline(options, served))
        steps = _Steps(options, served, sounds, baseline)
        runs = [await steps.run(transport, users) for users in options.concurrency for transport in transports]
    naive = baseline.summary() if baseline is not None else None
    settings = {
        "concurrency": list(options.concurrency),
        "turns_each": options.turns_each,
        "max_tokens": options.max_tokens,
        "silence_ms": options.silence_ms,
        "server": options.server,
        "overrides": list(options.overrides),
    }
    return {
        **served.report(SCHEMA, "load", settings),
        "runs": runs,
        "naive": naive,
        "ratios": _ratios(runs, naive),
    }


def _ratios(runs: Sequence[dict[str, Any]], naive: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Throughput of each run beside the baseline's."""
    theirs = naive["throughput"]["audio_s_per_s"] if naive is not None else None
    return [
        {
            "transport": run["transport"],
            "users": run["users"],
            "throughput": report.ratio(run["totals"]["audio_s_per_s"], theirs),
        }
        for run in runs
    ]


class _Steps:
    """Runs one step after another."""

    def __init__(
        self,
        options: argparse.Namespace,
        served: Served,
        sounds: dict[str, Any],
        baseline: Baseline | None,
    ) -> None:
        self._options = options
        self._served = served
        self._sounds = sounds
        self._baseline = baseline
        self._gpus = Gpus()
        self._warm = False

    async def run(self, transport: str, users: int) -> dict[str, Any]:
        """One step: ``users`` at a time over ``transport``, then the baseline's turns."""
        options = self._options
        count = max(users * options.turns_each, options.least)
        texts = list(questions(count))
        processes = min(users, options.client_processes or process_count(users))
        say(f"{transport}: {users} users, {count} turns")
        async with Users.ready(self._plan(transport), users, processes) as askers:
            await askers.ask(texts[:users])  # every user once, not counted
            before = await self._served.stats()
            async with watching(self._gpus) as watched:
                found = await askers.ask(texts)
            after = await self._served.stats()
            lags = askers.lags
            profile = await self._profile(askers, found, count) if options.profile else None
        await self._ask_baseline(texts[: options.naive_turns])
        return {
            "transport": transport,
            "users": users,
            **report.measured(found, before, after),
            "row_faults": after["pool"].get("row_faults", 0) if after is not None else None,
            "errors": dict(collections.Counter(turn.error for turn in found.turns if turn.error is not None)),
            "good_users": _good_users(found, users),
            "gpus": watched.gpus,
            "client_processes": processes,
            "client_lag_ms": {"p50": max(lag[0] for lag in lags), "p99": max(lag[1] for lag in lags)},
            "profile": profile,
        }

    async def _ask_baseline(self, texts: Sequence[str]) -> None:
        if self._baseline is None:
            return
        await asyncio.sleep(REST_S)
        if not self._warm:
            await self._baseline.warm_up(Question(texts[0]))
            self._warm = True
        for text in texts:
            await self._baseline.ask(Question(text))
        await asyncio.sleep(REST_S)

    async def _profile(self, users: Users, found: Outcome, count: int) -> dict[str, Any]:
        """Where the time goes while the users ask as many questions as keep them busy for long enough."""
        needed = PROFILE_LEAD_S + PROFILE_S + PROFILE_GPU_S
        more = max(1, round(count * (needed + PROFILE_LEAD_S) / max(found.wall_s, 0.1)))
        asking = asyncio.create_task(users.ask(list(questions(more))))
        await asyncio.sleep(PROFILE_LEAD_S)
        client = self._served.client
        path = f"{client.base}/v1/profile?seconds={PROFILE_S}&gpu_seconds={PROFILE_GPU_S}"
        async with client.http.post(path, headers=client.headers) as response:
            profile: dict[str, Any] = {"server": {"error": f"HTTP {response.status}: the server has to allow it"}}
            if response.status == 200:
                profile = await response.json()
        await asking
        return profile

    def _plan(self, transport: str) -> UserPlan:
        options, client = self._options, self._served.client
        return UserPlan(
            transport, client.base, client.api_key, options.max_tokens, options.silence_ms, options.timeout,
            self._sounds if transport == "ws" else {},
        )  # fmt: skip


def _good_users(found: Outcome, users: int) -> int:
    """How many users at a time had nothing but good streams, by the share of streams that were."""
    played = [turn.continuity.good for turn in found.turns if turn.continuity is not None]
    return int(users * sum(played) / len(found.turns)) if found.turns else 0
