"""``voicechat bench soak``: many short turns, connects and disconnects, half of them rude; what is held after them.

Memory is compared with that after a tenth of the turns, when all that is made once has been made.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

from voicechat.bench.chat_client import ClientError
from voicechat.bench.outcome import Report, outcome
from voicechat.bench.served import Progress, Served, serving
from voicechat.bench.upkeep import at_rest, connect, lost, rude

SCHEMA = "voicechat.bench.soak/1"
MOST_GROWTH = 0.02
"""By which the server's memory may have grown after the first tenth."""


def main(options: argparse.Namespace) -> int:
    """Run it, print the report; 1 if anything was lost."""
    return outcome(options, lambda: _run(options), as_text, lambda report: not report["passed"])


async def _run(options: argparse.Namespace) -> Report:
    async with serving(options) as served:
        settings = {"turns": options.turns, "concurrency": options.concurrency, "seed": options.seed}
        return {**served.report(SCHEMA, "soak", settings), **await soak(served, options)}


async def soak(served: Served, options: argparse.Namespace) -> Report:
    """The measured part of the report."""
    rng, errors, refused = random.Random(options.seed), dict[str, int](), 0
    first = max(1, options.turns // 10)
    progress = Progress("", "turns", options.turns)
    done, connects = 0, 0

    async def turn(number: int, choice: float) -> None:
        nonlocal done, connects, refused
        if number % 10 == 0:
            connects += 1
            refused += not await connect(served, rudely=choice < 0.5)
        if choice < 0.05:
            await rude(served)
        else:
            try:
                await served.client.ask("Say yes.", max_tokens=options.max_tokens, timeout_s=options.timeout)
            except ClientError as error:
                errors[str(error)] = errors.get(str(error), 0) + 1
        done += 1
        progress.tell(done)

    async def run(numbers: range) -> None:
        left = iter(numbers)

        async def user() -> None:
            for number in left:
                await turn(number, rng.random())

        await asyncio.gather(*(user() for _ in range(options.concurrency)))

    begun = time.perf_counter()
    await run(range(first))
    before = await at_rest(served)
    await run(range(first, options.turns))
    after = await at_rest(served, before)
    growth = after.rss_kb / before.rss_kb - 1
    leaks = lost(before, after)
    if growth > MOST_GROWTH:
        leaks.append(f"memory grew by {growth:.1%}")
    return {
        "turns": done,
        "connects": connects,
        "connects_refused": refused,
        "errors": errors,
        "seconds": time.perf_counter() - begun,
        "rss_growth": growth,
        "before": before.to_dict(),
        "after": after.to_dict(),
        "lost": leaks,
        "passed": not leaks and not errors,
    }


def as_text(report: Report) -> str:
    """The report for people."""
    lines = [
        f"{report['turns']} turns and {report['connects']} connects in {report['seconds']:.0f} s",
        f"memory {report['rss_growth']:+.2%} after the first tenth",
        *(f"lost: {what}" for what in report["lost"]),
        *(f"{count} x {error}" for error, count in report["errors"].items()),
        "passed" if report["passed"] else "FAILED",
    ]
    return "\n".join(lines)
