"""What is being transcribed, and for which item; and what is heard ahead while a turn is still open. Pure.

A *probe* hears the turn at a short silence. If the silence becomes a pause, it is the *guess* of what the turn will
have been, begun early; if not, its text is still that of the turn so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from voicechat.realtime.captions import Captions
from voicechat.realtime.items import Item
from voicechat.realtime.outbox import CancelTranscribe, Outbox, Sound, Transcribe
from voicechat.realtime.response import Times


@dataclass(frozen=True, slots=True)
class Waiting:
    """A part of an item that waits for its text. ``times`` are those of the reply that is to follow it, if one is;
    ``captions`` what was told of the text already."""

    item: Item
    part: int
    seconds: float
    times: Times | None = None
    captions: Captions = field(default_factory=Captions)


class Ears:
    """Hands out jobs. At most one guess and one probe at a time; what comes of a job that was dropped is ignored."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._last = 0
        self._waiting: dict[int, Waiting] = {}
        self._guess: int | None = None
        self._guessed: str | None = None
        self._probe: int | None = None
        self._probed: str | None = None
        self._silent = False  # since the probe began

    @property
    def guessed(self) -> str | None:
        """Text of the guess, once it has come."""
        return self._guessed

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

    def probe(self, sound: Sound) -> None:
        """A short silence after ``sound``. Nothing happens while an earlier probe or a guess is being heard."""
        if (self._probe is not None and self._probed is None) or self._guess is not None:
            return
        self._probe, self._probed, self._silent = self._start(sound), None, True

    def speak_on(self) -> None:
        """The silence is over: the probe, if there is one, can't be the guess any more."""
        self._silent = False

    def adopt(self) -> bool:
        """The silence has become a pause: if the probe began in it, it is the guess, and True is returned."""
        if self._probe is None or not self._silent:
            return False
        self.drop_guess()
        self._guess, self._guessed = self._probe, self._probed
        self._probe = self._probed = None
        return True

    def drop_probe(self) -> None:
        """The turn is over, or there is none."""
        if self._probe is not None and self._probed is None:
            self._out.add(CancelTranscribe(self._probe))
        self._probe = self._probed = None

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
        if job == self._probe:
            self._probed = text
            return None
        return self._waiting.pop(job, None)

    def on_failed(self, job: int) -> Waiting | None:
        """A job failed: who waited for it. A guess or a probe that failed is forgotten."""
        if job == self._guess:
            self._guess = None
            return None
        if job == self._probe:
            self._probe = None
            return None
        return self._waiting.pop(job, None)

    def is_guess(self, job: int) -> bool:
        """True if ``job`` is the guess that stands."""
        return job == self._guess

    def is_probe(self, job: int) -> bool:
        """True if ``job`` is the probe that stands."""
        return job == self._probe

    def drop_item(self, item: Item) -> None:
        """An item is gone."""
        for job, waiting in list(self._waiting.items()):
            if waiting.item is item:
                self._cancel(job)

    def close(self) -> None:
        """Stop all jobs."""
        self.drop_guess()
        self.drop_probe()
        for job in list(self._waiting):
            self._cancel(job)

    def _cancel(self, job: int) -> None:
        del self._waiting[job]
        self._out.add(CancelTranscribe(job))

    def _start(self, sound: Sound) -> int:
        self._last += 1
        self._out.add(Transcribe(self._last, sound))
        return self._last
