"""The closed loop: N users, each asks its next question when it has heard the answer to the one before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from voicechat.bench.askers import Asker
from voicechat.bench.turn import Question, Turn

REST_S = 0.3
"""Pause between the server's turns and the baseline's, so that the one's threads are asleep when the other begins."""


@dataclass(slots=True)
class Outcome:
    """All turns in the order in which they ended, and the seconds during which the server had work to do."""

    turns: list[Turn] = field(default_factory=list)
    wall_s: float = 0.0


async def closed_loop(
    users: Sequence[Asker], questions: Sequence[Question], told: Callable[[int], None] = lambda count: None
) -> Outcome:
    """Ask all ``questions``, shared out among ``users`` as each becomes free. ``told`` hears how many are answered."""
    outcome, left = Outcome(), list(reversed(questions))

    async def user(asker: Asker) -> None:
        while left:
            outcome.turns.append(await asker.ask(left.pop()))
            told(len(outcome.turns))

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for asker in users:
            group.create_task(user(asker))
    outcome.wall_s = time.perf_counter() - begun
    return outcome


async def interleaved(
    users: Sequence[Asker],
    questions: Sequence[Question],
    baseline: Callable[[Question], Awaitable[None]],
    told: Callable[[int], None] = lambda count: None,
) -> Outcome:
    """As :func:`closed_loop`, in rounds of one question a user; then ``baseline`` gets the first of each round."""
    outcome = Outcome()
    for start in range(0, len(questions), len(users)):
        asked = questions[start : start + len(users)]
        part = await closed_loop(users[: len(asked)], asked)
        outcome.turns += part.turns
        outcome.wall_s += part.wall_s
        await asyncio.sleep(REST_S)
        await baseline(asked[0])
        await asyncio.sleep(REST_S)
        told(len(outcome.turns))
    return outcome
