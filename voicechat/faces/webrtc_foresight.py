"""Work done ahead: a pause may be the end of the turn, so the ears and then the reply begin before it is known.

If the turn ends as foreseen, its transcript is there and its reply has been running for a while; nothing of either was
shown to anybody before. If the speaker goes on, both are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from voicechat.cascade.api import Cascade, EarsPcm, Response, ResponseRequest


class Foresight:
    """At most one guess at a time. ``start`` runs a coroutine as a task of the session.

    ``foresee`` gives the request that would follow from a transcript, or None if no reply is to be begun ahead.
    """

    def __init__(
        self,
        cascade: Cascade,
        start: Callable[[Coroutine[Any, Any, str]], asyncio.Task[str]],
        foresee: Callable[[str], ResponseRequest | None],
    ) -> None:
        self._cascade = cascade
        self._start = start
        self._foresee = foresee
        self._task: asyncio.Task[str] | None = None
        self._draft: tuple[ResponseRequest, Response] | None = None

    def begin(self, audio: EarsPcm) -> None:
        """The turn may be over; this is its sound."""
        self.drop()
        self._task = self._start(self._run(audio))

    def drop(self) -> None:
        """The turn is not over, or will not be answered."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._draft is not None:
            self._draft[1].cancel()
            self._draft = None

    def transcript(self, audio: EarsPcm) -> asyncio.Task[str]:
        """The turn is over: its transcript, begun ahead or now. Raises what :meth:`Cascade.transcribe` raises."""
        task, self._task = self._task, None
        return task or self._start(self._cascade.transcribe(audio))

    def response(self, request: ResponseRequest) -> Response:
        """The reply to ``request``: the one begun ahead if it is to the very same request, else a new one."""
        draft, self._draft = self._draft, None
        if draft is not None:
            if draft[0] == request:
                return draft[1]
            draft[1].cancel()
        return self._cascade.respond(request)

    async def _run(self, audio: EarsPcm) -> str:
        transcript = await self._cascade.transcribe(audio)
        if self._task is asyncio.current_task() and (request := self._foresee(transcript.strip())) is not None:
            self._draft = (request, self._cascade.respond(request))
        return transcript
