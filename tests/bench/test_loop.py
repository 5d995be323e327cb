"""The closed loop, with users that only sleep."""

from __future__ import annotations

import asyncio

import pytest

from voicechat.bench.loop import closed_loop, interleaved
from voicechat.bench.turn import Question, Turn


class Sleeper:
    """Answers after a moment and keeps count of how many ask at once."""

    now = most = 0

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.asked: list[str] = []

    async def ask(self, question: Question) -> Turn:
        Sleeper.now += 1
        Sleeper.most = max(Sleeper.most, Sleeper.now)
        await asyncio.sleep(self.seconds)
        Sleeper.now -= 1
        self.asked.append(question.text)
        return Turn(question.text)

    async def close(self) -> None:
        """Nothing to do."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Sleeper.now = Sleeper.most = 0


def numbered(count: int) -> list[Question]:
    return [Question(str(number)) for number in range(count)]


async def test_every_question_is_asked_once_by_as_many_users_as_there_are() -> None:
    users = [Sleeper(), Sleeper(), Sleeper(0.05)]
    told: list[int] = []
    outcome = await closed_loop(users, numbered(20), told.append)
    assert sorted(int(turn.question) for turn in outcome.turns) == list(range(20))
    assert Sleeper.most == 3
    assert len(users[0].asked) > len(users[2].asked), "who is quick asks more"
    assert told == list(range(1, 21))
    assert outcome.wall_s > 0


async def test_the_baseline_has_its_turns_alone() -> None:
    asked: list[str] = []

    async def baseline(question: Question) -> None:
        assert Sleeper.now == 0
        asked.append(question.text)

    outcome = await interleaved([Sleeper(), Sleeper()], numbered(5), baseline)
    assert len(outcome.turns) == 5
    assert asked == ["0", "2", "4"]
