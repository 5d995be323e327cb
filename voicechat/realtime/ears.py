"""What is being transcribed, and for which item; and the guess made while a pause is still being judged. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from voicechat.realtime.items import Item
from voicechat.realtime.outbox import CancelTranscribe, Outbox, Sound, Transcribe
from voicechat.realtime.response import Times


@dataclass(frozen=True, slots=True)
class Waiting:
    """A part of an item that waits for its text. ``times`` are those of the reply that is to follow it, if one is."""

    item: Item
    part: int
    seconds: float
    times: Times | None = None


class Ears:
    """Hands out jobs. At most one guess at a time; what comes of a job that was dropped is ignored."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._last = 0
        self._waiting: dict[int, Waiting] = {}
        self._guess: int | None = None
        self._guessed: str | None = None

    @property
    def pending(self) -> bool:
        """True while an item waits for its text."""
        return bool(self._waiting)

    def guess(self, sound: Sound) -> None:
        """The turn may be over, and this is its sound: begin."""
        self.drop_guess()
        self._guess = self._start(sound)

    def drop_guess(self) -> None:
        """The turn is not over."""
        if self._guess is not None and self._guessed is None:
            self._out.add(CancelTranscribe(self._guess))
        self._guess = self._guessed = None

    def hear(self, waiting: Waiting, sound: Sound) -> str | None:
        """Find the text of ``sound``; at once if it was guessed, which is used up by this."""
        job, text = self._guess, self._guessed
        self._guess = self._guessed = None
        if job is None:
            job = self._start(sound)
        if text is None:
            self._waiting[job] = waiting
        return text

    def hear_also(self, waiting: Waiting, sound: Sound) -> None:
        """Find the text of a sound that is no turn."""
        self._waiting[self._start(sound)] = waiting

    def on_text(self, job: int, text: str) -> Waiting | None:
        """A job is done: who waited for it. ``None`` if it is (still) a guess, or nobody does."""
        if job == self._guess:
            self._guessed = text
            return None
        return self._waiting.pop(job, None)

    def on_failed(self, job: int) -> Waiting | None:
        """A job failed: who waited for it. A guess that failed is forgotten."""
        if job == self._guess:
            self._guess = None
            return None
        return self._waiting.pop(job, None)

    def is_guess(self, job: int) -> bool:
        """True if ``job`` is the guess that stands."""
        return job == self._guess

    def drop_item(self, item: Item) -> None:
        """An item is gone."""
        for job, waiting in list(self._waiting.items()):
            if waiting.item is item:
                self._cancel(job)

    def close(self) -> None:
        """Stop all jobs."""
        self.drop_guess()
        for job in list(self._waiting):
            self._cancel(job)

    def _cancel(self, job: int) -> None:
        del self._waiting[job]
        self._out.add(CancelTranscribe(job))

    def _start(self, sound: Sound) -> int:
        self._last += 1
        self._out.add(Transcribe(self._last, sound))
        return self._last
