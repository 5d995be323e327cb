"""The list of questions."""

from __future__ import annotations

from voicechat.bench.questions import QUESTIONS, questions


def test_there_are_enough_and_no_two_alike() -> None:
    assert len(QUESTIONS) >= 24
    assert len({question.lower() for question in QUESTIONS}) == len(QUESTIONS)
    assert all(question.endswith("?") for question in QUESTIONS)


def test_they_come_in_order_and_again() -> None:
    asked = list(questions(len(QUESTIONS) + 3))
    assert asked == [*QUESTIONS, *QUESTIONS[:3]]
    assert list(questions(0)) == []
