"""Earlier spoken replies by their ids, so that a conversation can refer to them without sending them back."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

TTL_S = 3600
MAX_REPLIES = 1024


class AudioStore:
    """Transcripts of spoken replies, each kept for ``ttl_s`` seconds and at most ``max_replies`` of them.

    Ids are random and long, so that knowing one is the right to use it. ``clock`` gives Unix seconds.
    """

    def __init__(
        self, ttl_s: int = TTL_S, max_replies: int = MAX_REPLIES, clock: Callable[[], float] = time.time
    ) -> None:
        self._ttl_s = ttl_s
        self._max_replies = max_replies
        self._clock = clock
        self._replies: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    @staticmethod
    def new_id() -> str:
        """An id for a reply that is about to be made."""
        return f"audio_{secrets.token_hex(16)}"

    def put(self, audio_id: str, transcript: str) -> int:
        """Keep a reply that is complete; returns the Unix second at which it expires."""
        now = self._clock()
        while self._replies and (
            len(self._replies) >= self._max_replies or next(iter(self._replies.values()))[1] <= now
        ):
            self._replies.popitem(last=False)
        expires_at = int(now) + self._ttl_s
        self._replies[audio_id] = (transcript, expires_at)
        return expires_at

    def get(self, audio_id: str) -> str | None:
        """Transcript of a reply, or ``None`` if there is none under this id, or no longer."""
        entry = self._replies.get(audio_id)
        if entry is None or entry[1] <= self._clock():
            return None
        return entry[0]
