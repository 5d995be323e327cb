"""What is being transcribed, and for which item; and what is heard ahead while a turn is still open. Pure.

A *partial* hears the turn at a short silence. If the silence becomes a pause, it is the *hypothesis* of what the turn
will have been, begun early; if not, its text is still that of the turn so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from voicechat.realtime.items import Item
from voicechat.realtime.outbox import CancelTranscribe, Outbox, Sound, Transcribe
from voicechat.realtime.partial_transcript import PartialTranscript
from voicechat.realtime.response import Times


@dataclass(frozen=True, slots=True)
class Waiting:
    """A part of an item that waits for its text. ``times`` are those of the reply that is to follow it, if one is;
    ``told`` what was told of the text already."""

    item: Item
    part: int
    seconds: float
    times: Times | None = None
    told: PartialTranscript = field(default_factory=PartialTranscript)


class Recognition:
    """Hands out jobs to the ASR. At most one hypothesis and one partial at a time; what comes of a job that was dropped
    is ignored."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._last = 0
        self._waiting: dict[int, Waiting] = {}
        self._hypothesis: int | None = None
        self._hypothesis_text: str | None = None
        self._partial: int | None = None
        self._partial_text: str | None = None
        self._silent = False  # since the partial began

    @property
    def hypothesis(self) -> str | None:
        """Text of the hypothesis, once it has come."""
        return self._hypothesis_text

    @property
    def pending(self) -> bool:
        """True while an item waits for its text."""
        return bool(self._waiting)

    def suppose(self, sound: Sound) -> None:
        """The turn may be over, and this is its sound: begin."""
        self.drop_hypothesis()
        self._hypothesis = self._start(sound)

    def drop_hypothesis(self) -> None:
        """The turn is not over."""
        if self._hypothesis is not None and self._hypothesis_text is None:
            self._out.add(CancelTranscribe(self._hypothesis))
        self._hypothesis = self._hypothesis_text = None

    def hear_ahead(self, sound: Sound) -> None:
        """A short silence after ``sound``. Nothing happens while an earlier partial or a hypothesis is being heard."""
        if (self._partial is not None and self._partial_text is None) or self._hypothesis is not None:
            return
        self._partial, self._partial_text, self._silent = self._start(sound), None, True

    def speak_on(self) -> None:
        """The silence is over: the partial, if there is one, can't be the hypothesis any more."""
        self._silent = False

    def adopt(self) -> bool:
        """The silence has become a pause: if the partial began in it, it is the hypothesis, and True is returned."""
        if self._partial is None or not self._silent:
            return False
        self.drop_hypothesis()
        self._hypothesis, self._hypothesis_text = self._partial, self._partial_text
        self._partial = self._partial_text = None
        return True

    def drop_partial(self) -> None:
        """The turn is over, or there is none."""
        if self._partial is not None and self._partial_text is None:
            self._out.add(CancelTranscribe(self._partial))
        self._partial = self._partial_text = None

    def hear(self, waiting: Waiting, sound: Sound) -> str | None:
        """Find the text of ``sound``; at once if there is a hypothesis, which is used up by this."""
        job, text = self._hypothesis, self._hypothesis_text
        self._hypothesis = self._hypothesis_text = None
        if job is None:
            job = self._start(sound)
        if text is None:
            self._waiting[job] = waiting
        return text

    def hear_also(self, waiting: Waiting, sound: Sound) -> None:
        """Find the text of a sound that is no turn."""
        self._waiting[self._start(sound)] = waiting

    def on_text(self, job: int, text: str) -> Waiting | None:
        """A job is done: who waited for it. ``None`` if it is (still) a hypothesis, or nobody does."""
        if job == self._hypothesis:
            self._hypothesis_text = text
            return None
        if job == self._partial:
            self._partial_text = text
            return None
        return self._waiting.pop(job, None)

    def on_failed(self, job: int) -> Waiting | None:
        """A job failed: who waited for it. A hypothesis or a partial that failed is forgotten."""
        if job == self._hypothesis:
            self._hypothesis = None
            return None
        if job == self._partial:
            self._partial = None
            return None
        return self._waiting.pop(job, None)

    def is_hypothesis(self, job: int) -> bool:
        """True if ``job`` is the hypothesis that stands."""
        return job == self._hypothesis

    def is_partial(self, job: int) -> bool:
        """True if ``job`` is the partial that stands."""
        return job == self._partial

    def drop_item(self, item: Item) -> None:
        """An item is gone."""
        for job, waiting in list(self._waiting.items()):
            if waiting.item is item:
                self._cancel(job)

    def close(self) -> None:
        """Stop all jobs."""
        self.drop_hypothesis()
        self.drop_partial()
        for job in list(self._waiting):
            self._cancel(job)

    def _cancel(self, job: int) -> None:
        del self._waiting[job]
        self._out.add(CancelTranscribe(job))

    def _start(self, sound: Sound) -> int:
        self._last += 1
        self._out.add(Transcribe(self._last, sound))
        return self._last
