"""The spoken side of a session: one reply at a time, from the cascade to the playout, and what the client hears of it.

A newer reply makes an older one's output stale. A reply is over when its last sample has been played, not when it was
made. Of one that was cut off, the history keeps what was heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from voicechat.cascade.api import PCM_RATE, AudioDelta, CascadeError, Finished, FinishReason, Response, TextDelta
from voicechat.faces import webrtc_events as events
from voicechat.faces.webrtc_history import History
from voicechat.faces.webrtc_reply import Reply, Status, TurnTimes
from voicechat.media.playout import Playout, PlayoutFrame

log = logging.getLogger(__name__)

MAX_QUEUED_SAMPLES = 60 * PCM_RATE
"""Sound made ahead of what is played, at most; the cascade waits beyond it."""


class Speaker:
    """``emit`` sends an event, ``start`` runs a coroutine as a task of the session, ``clock`` gives seconds."""

    def __init__(
        self,
        session_id: str,
        playout: Playout,
        history: History,
        emit: Callable[[events.Event], None],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        clock: Callable[[], float],
    ) -> None:
        self._session_id = session_id
        self._playout = playout
        self._history = history
        self._emit = emit
        self._start = start
        self._clock = clock
        self._generation = 0
        self._reply: Reply | None = None
        self._spoke = False

    @property
    def reply(self) -> Reply | None:
        """The live reply: being made, or being played."""
        return self._reply

    @property
    def generating(self) -> bool:
        """True while the cascade makes the live reply."""
        return self._reply is not None and self._reply.generating

    @property
    def sounding(self) -> bool:
        """True while the live reply is heard."""
        return self._reply is not None and self._reply.sounding

    @property
    def spoke(self) -> bool:
        """True once any sound was made."""
        return self._spoke

    def speak(self, response: Response, times: TurnTimes, voice: str) -> None:
        """Make ``response`` the live reply. There must be none."""
        self._generation += 1
        reply = Reply(self._generation, response, times, voice)
        self._reply = reply
        self._playout.begin()
        previous = self._history.last_id
        self._history.add(reply.item_id, "assistant", None)
        for event in reply.opening(previous):
            self._emit(event)
        self._start(self._run(reply, previous))

    def on_played(self, frame: PlayoutFrame) -> bool:
        """A frame has left; True if the live reply is over by it."""
        reply = self._reply
        if reply is None:
            return False
        if frame.started:
            reply.sounding = True
            reply.times.first_sound = self._clock()
            self._emit(reply.buffer_event("started"))
        if frame.drained:
            if reply.sounding:
                self._emit(reply.buffer_event("stopped"))
            if not reply.complete:
                heard = reply.heard(self._playout.played, self._playout.pushed)
                self._history.set_text(reply.item_id, heard or None)
            self._reply = None
        return frame.drained

    def cancel(self) -> bool:
        """Make no more of the live reply; what was made still plays. False if none is being made."""
        reply = self._reply
        if reply is None or not reply.generating:
            return False
        reply.response.cancel()
        self._close(reply, "cancelled", None, reason="client_cancelled")
        return True

    def interrupt(self, reason: str) -> None:
        """Stop the live reply and its sound at once; keep of it what was heard."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        played = self._playout.clear()
        heard = reply.heard(played, self._playout.pushed)
        if reply.sounding:
            self._emit(reply.buffer_event("cleared"))
        if reply.generating:
            reply.response.cancel()
            for event in reply.closing("cancelled", None, reason=reason):
                self._emit(event)
        if heard != reply.text:
            self._emit(
                events.event(
                    "conversation.item.truncated",
                    item_id=reply.item_id,
                    content_index=0,
                    audio_end_ms=played * 1000 // PCM_RATE,
                )
            )
        self._history.set_text(reply.item_id, heard or None)

    async def _run(self, reply: Reply, previous: str | None) -> None:
        """Bring the reply from the cascade to the client. One that was stopped is drained in silence."""
        try:
            async for event in reply.response:
                if not reply.generating:
                    continue
                match event:
                    case TextDelta(text):
                        reply.times.first_text = reply.times.first_text or self._clock()
                        self._emit(reply.delta(text))
                        self._history.set_text(reply.item_id, reply.text)
                    case AudioDelta(pcm):
                        reply.times.first_audio = reply.times.first_audio or self._clock()
                        self._spoke = True
                        self._playout.push(pcm)
                        if (ahead := self._playout.queued - MAX_QUEUED_SAMPLES) > 0:
                            await asyncio.sleep(ahead / PCM_RATE)
                    case Finished():
                        self._finish(reply, event, previous)
        except CascadeError as error:
            self._fail(reply, events.cascade_error(error), previous)
        else:
            self._fail(reply, {"type": "server_error", "code": None, "message": "The reply broke off."}, previous)
        finally:
            reply.response.cancel()

    def _finish(self, reply: Reply, finished: Finished, previous: str | None) -> None:
        times = " ".join(f"{name}={value}" for name, value in reply.times.metadata(finished.times).items())
        log.info("session %s reply %d: %s", self._session_id, reply.generation, times)
        status: Status = "completed"
        reason = None
        if finished.reason is FinishReason.LENGTH:
            status, reason = "incomplete", "max_output_tokens"
        elif finished.reason is FinishReason.CANCELLED:
            status = "cancelled"
        self._close(reply, status, previous, reason=reason, usage=finished.usage, stages=finished.times)

    def _fail(self, reply: Reply, error: dict[str, str | None], previous: str | None) -> None:
        """The reply ended without a :class:`Finished`; nothing happens if it was over before."""
        if reply.generating:
            log.warning("session %s reply %d failed: %s", self._session_id, reply.generation, error["message"])
            self._close(reply, "failed", previous, error=error)

    def _close(self, reply: Reply, status: Status, previous: str | None, **details: Any) -> None:
        """The cascade is done with the reply; what was made of it still plays."""
        for event in reply.closing(status, previous, **details):
            self._emit(event)
        self._playout.finish()
