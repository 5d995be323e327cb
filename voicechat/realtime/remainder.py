"""What is left of a reply that was stopped because somebody spoke, while it is not known whether that was anything.

Where the client plays, it is told of speech at once, and stops. If the speech turns out to be nothing (a cough, a
listener's word), the listener is to hear the rest, from the sample at which the client says that it stopped. By the
protocol that is a new response; to the Thinker the two are one turn. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from voicechat.contract.errors import CascadeError
from voicechat.contract.events import AudioDelta, Event, Finished
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.realtime.items import Item
from voicechat.realtime.outbox import Clip
from voicechat.realtime.response import Reply, Status

MAX_SAMPLES = 60 * PCM_RATE
"""Sound that may come while nobody knows whether it is wanted."""

WORTH_SAMPLES = PCM_RATE * 2 // 5
"""Less than this is not gone on with: what was said at the very end of a reply is an answer to it."""


@dataclass(slots=True)
class Remainder:
    """``text`` and ``sounds`` are all that was made of ``item`` when it was stopped. ``generation`` is the cascade's
    response, if it still runs, and ``events`` what has come of it since; else ``status`` and ``reason`` say how the
    reply had ended."""

    reply: Reply
    item: Item
    text: str
    sounds: list[Clip]
    generation: int | None
    status: Status = "completed"
    reason: str | None = None
    events: list[Event | CascadeError] = field(default_factory=list)
    cut: int | None = None
    """Samples after which the client stopped."""
    _coming: int = 0

    @classmethod
    def of(cls, reply: Reply) -> Remainder | None:
        """None if ``reply`` can't be gone on with: it was never heard, was stopped before, is not of the conversation,
        or has called a function, whose result the client is about to bring."""
        item = reply.message
        if item is None or not reply.spec.audio or not reply.spec.in_conversation or reply.called:
            return None
        if reply.status not in ("in_progress", "completed", "incomplete"):
            return None
        part = item.parts[0]
        sounds = [sound for sound in part.sounds if isinstance(sound, Clip)]
        if part.samples == 0 or sum(len(sound.samples) for sound in sounds) != part.samples:
            return None
        generation = reply.generation if reply.live else None
        return cls(reply, item, part.text or "", sounds, generation, reply.status, reply.reason)

    @property
    def running(self) -> bool:
        """True while the cascade still makes more."""
        last = self.events[-1] if self.events else None
        return self.generation is not None and not isinstance(last, Finished | CascadeError)

    def take(self, event: Event | CascadeError) -> bool:
        """More has come of it; False if that is more than can be kept."""
        self.events.append(event)
        if isinstance(event, AudioDelta):
            self._coming += len(event.pcm)
        return self._coming <= MAX_SAMPLES

    def worth_hearing(self) -> bool:
        """True if the client has stopped, and enough is left, or may be."""
        if self.cut is None:
            return False
        made = sum(len(sound.samples) for sound in self.sounds) + self._coming
        return self.running or made - self.cut >= WORTH_SAMPLES

    def words(self) -> str:
        """What of the text is not in the item any more."""
        return self.text[len(self.item.parts[0].text or "") :]

    def sound(self) -> list[Pcm]:
        """What was made of the sound after the cut."""
        rest: list[Pcm] = []
        left = self.cut or 0
        for clip in self.sounds:
            if left < len(clip.samples):
                rest.append(clip.samples[left:])  # type: ignore[arg-type]
            left = max(0, left - len(clip.samples))
        return rest
