"""``voicechat bench chaos``: blows at random moments under load, and whether the server comes through each.

A blow is the kill of a stage, a stage that stops without dying, a flood of requests, or callers who leave in the
middle. Users ask all the while. Passed: the server was ready again after every blow, no request was left without an
answer or an error, and nothing is held at the end that was not held before.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from voicechat.bench.chat_client import ClientError
from voicechat.bench.outcome import BenchError, Report, outcome
from voicechat.bench.served import Progress, Served, serving
from voicechat.bench.upkeep import at_rest, connect, lost, rude, stats_of

SCHEMA = "voicechat.bench.chaos/1"
FLOOD = 40
"""Requests of a flood, at once."""
BACK_S = 90.0
"""Seconds within which the server has to be ready again."""


@dataclass(slots=True)
class Blow:
    """One blow. ``noticed_s``: until the server said that the stage is not up, ``back_s``: until it was ready again."""

    kind: str
    stage: str | None
    noticed_s: float | None = None
    back_s: float | None = None


def main(options: argparse.Namespace) -> int:
    """Run it, print the report; 1 if the server did not come through."""
    return outcome(options, lambda: _run(options), as_text, lambda report: not report["passed"])


async def _run(options: argparse.Namespace) -> Report:
    async with serving(options) as served:
        settings = {
            "blows": options.blows, "kinds": options.kinds, "concurrency": options.concurrency, "seed": options.seed,
        }  # fmt: skip
        return {**served.report(SCHEMA, "chaos", settings), **await chaos(served, options)}


async def chaos(served: Served, options: argparse.Namespace) -> Report:
    """The measured part of the report."""
    stats = await stats_of(served)
    stages = sorted(name for name, pid in stats.get("processes", {}).items() if pid is not None)
    kinds = [kind for kind in options.kinds if stages or kind in ("flood", "rude")]
    if not kinds:
        raise BenchError("this server has no stages that could be struck", 2)
    before, rng = await at_rest(served), random.Random(options.seed)
    users = [asyncio.create_task(_user(served, options.timeout)) for _ in range(options.concurrency)]
    progress, blows = Progress("", "blows", options.blows), list[Blow]()
    for number in range(options.blows):
        await asyncio.sleep(rng.uniform(0.5, 3.0))
        kind = kinds[number % len(kinds)]
        blow = Blow(kind, rng.choice(stages) if kind in ("kill", "stall") else None)
        blows.append(blow)
        await _strike(served, blow)
        progress.step()
        if blow.back_s is None:
            break
    for user in users:
        user.cancel()
    found = [task.result() for task in users if not task.cancelled()] if await _ended(users) else []
    after = await at_rest(served, before)
    counts: dict[str, int] = {}
    for outcomes in found:
        for what, count in outcomes.items():
            counts[what] = counts.get(what, 0) + count
    wrong = lost(before, after)
    wrong += [f"not ready again after: {blow.kind} of {blow.stage}" for blow in blows if blow.back_s is None]
    if hung := sum(count for what, count in counts.items() if what.startswith("no whole answer")):
        wrong.append(f"{hung} requests without an end")
    return {
        "blows": [asdict(blow) for blow in blows],
        "requests": counts,
        "before": before.to_dict(),
        "after": after.to_dict(),
        "wrong": wrong,
        "passed": not wrong,
    }


async def _ended(users: list[asyncio.Task[dict[str, int]]]) -> bool:
    await asyncio.wait(users)
    return True


async def _user(served: Served, timeout_s: float) -> dict[str, int]:
    """Ask and ask; what came of it, by the kind, once this is cancelled."""
    counts: dict[str, int] = {}
    try:
        while True:
            try:
                reply = await served.client.ask("Count from one to ten.", max_tokens=48, timeout_s=timeout_s)
                what = "answered" if reply.audio_s else "answered without sound"
            except ClientError as error:
                what = str(error)
                await asyncio.sleep(0.25)
            counts[what] = counts.get(what, 0) + 1
    except asyncio.CancelledError:
        return counts


async def _strike(served: Served, blow: Blow) -> None:
    begun = time.perf_counter()
    if blow.stage is not None:
        pid = (await stats_of(served))["processes"][blow.stage]
        os.kill(pid, signal.SIGKILL if blow.kind == "kill" else signal.SIGSTOP)
        begun = time.perf_counter()
        if not await _until(served, ready=False, seconds=30.0):
            return
        blow.noticed_s = time.perf_counter() - begun
    elif blow.kind == "flood":
        asked = [served.client.ask("Say yes.", max_tokens=8, timeout_s=120.0) for _ in range(FLOOD)]
        await asyncio.gather(*asked, return_exceptions=True)
    else:
        await asyncio.gather(*(rude(served) for _ in range(4)), *(connect(served, rudely=True) for _ in range(4)))
    if await _until(served, ready=True, seconds=BACK_S):
        blow.back_s = time.perf_counter() - begun


async def _until(served: Served, *, ready: bool, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            async with served.http.get(f"{served.client.base}/readyz") as response:
                if (response.status == 200) == ready:
                    return True
        except aiohttp.ClientError:
            return False  # the server itself is gone
        await asyncio.sleep(0.02)
    return False


def as_text(report: Report) -> str:
    """The report for people."""
    lines: list[str] = []
    for kind in sorted({(blow["kind"], blow["stage"] or "") for blow in report["blows"]}):
        mine = [blow for blow in report["blows"] if (blow["kind"], blow["stage"] or "") == kind]
        lines.append(
            f"{' '.join(kind):24} {len(mine):4}  noticed {_most(mine, 'noticed_s')}  back {_most(mine, 'back_s')}"
        )
    lines += [f"{count:6} x {what}" for what, count in sorted(report["requests"].items(), key=lambda pair: -pair[1])]
    lines += [f"wrong: {what}" for what in report["wrong"]]
    return "\n".join([*lines, "passed" if report["passed"] else "FAILED"])


def _most(blows: list[dict[str, Any]], name: str) -> str:
    values = [blow[name] for blow in blows if blow[name] is not None]
    return f"after {max(values):.1f} s at most" if values else "-"
