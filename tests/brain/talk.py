"""A brain's stage, and what it says of each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from voicechat.brain.stage import BrainOptions, BrainStage
from voicechat.contract.messages import Generate, Message, Piece, Released, Turn

PATIENCE = 20.0
"""Bound in seconds on any wait, so that a fault shows as a failure and not as a hang."""
QUESTION = (Turn("user", "Hi"),)


def options(url: str, **fields: Any) -> BrainOptions:
    given: dict[str, Any] = {
        "url": url, "model": "m", "api_key": None, "system_prompt": "Be brief.", "max_tokens": None,
        "connect_timeout": 2.0, "first_token_timeout": 5.0, "idle_timeout": 5.0,
    }  # fmt: skip
    return BrainOptions(**{**given, **fields})


class Talk:
    """A stage, and what it says of each request."""

    def __init__(self, made: BrainOptions) -> None:
        self.stage = BrainStage(made, on_message=self._take, on_death=lambda stage, how: None)
        self.said: dict[int, list[Message]] = {}
        self._news = asyncio.Event()

    def _take(self, message: Message) -> None:
        self.said.setdefault(message.id, []).append(message)  # type: ignore[union-attr]
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def ask(self, number: int = 1, **fields: Any) -> list[Message]:
        """All that is said of a request, without the last word, which is Released."""
        self.stage.send(Generate(number, QUESTION, True, **fields))
        return await self.end_of(number)

    async def end_of(self, number: int) -> list[Message]:
        await self.until(lambda: isinstance(self.said.get(number, [None])[-1], Released))
        *said, last = self.said[number]
        assert last == Released(number, 0)
        return said


Start = Callable[..., Awaitable[Talk]]


def text(said: list[Message]) -> list[str]:
    return [piece for message in said if isinstance(message, Piece) for piece in message.pieces]
