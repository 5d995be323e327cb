"""Stages without processes or models, and an event loop whose clock jumps: for tests of the coordinator alone.

The doubles keep the stages' contract (see ``voicechat.contract.messages``), do one small thing whenever they are told
to, and complain if the coordinator gives a slot to a second response while a worker may still write into it.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voicechat.contract.hearing import Transcription
from voicechat.contract.messages import (
    Abort,
    Attach,
    Attached,
    Codes,
    Decode,
    Failed,
    Generate,
    Message,
    Piece,
    Released,
    Sound,
    Speak,
    Spoken,
    Text,
    Transcribe,
    Transcript,
    Written,
)
from voicechat.contract.pool import Pool

STEP_SAMPLES = 960
STEP_BYTES = 2
HELD_BACK = 480
"""Samples that it holds back."""
BOOT = 0.5
"""Seconds that a double takes to start."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: moves its clock on instead."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now += timeout
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only when nothing else is to be done, and then at once."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


@dataclass
class Work:
    """A request inside a double. ``left``: pieces or codes still to come."""

    message: Any
    left: int = 0
    text: list[str] = field(default_factory=list)
    final: bool = False
    aborted: bool = False


class StageDouble:
    """What the coordinator sees of a stage. Subclasses say what a message does, and what one step of work is."""

    lane = ""

    def __init__(
        self,
        rng: random.Random,
        name: str,
        *,
        on_message: Callable[[Message], None],
        on_death: Callable[[Any, str], None],
    ) -> None:
        self.rng = rng
        self.name = name
        self.pool: Pool | None = None
        self.facts: dict[str, str | int | float] = {}
        self.pid = None
        self.alive = self.up = False
        self.buried = True  # its last writes come with its death
        self.worked = True
        self.diagnosis: str | None = None
        self.last_words: tuple[str, ...] = ()
        self.starts = 0
        self.deaths = 0
        self.log: list[Message] = []
        self._on_message = on_message
        self._on_death = on_death
        self._reset()

    def _reset(self) -> None:
        self.inbox: deque[Message] = deque()
        self.outbox: deque[Message] = deque()
        self.work: dict[int, Work] = {}
        self.touched: dict[int, int] = {}

    @property
    def state(self) -> str:
        return "up" if self.up else "starting" if self.alive else "down"

    async def start(self) -> None:
        self.alive = True
        self.starts += 1
        await asyncio.sleep(BOOT)
        self._reset()
        self.up = True

    async def stop(self) -> None:
        self.alive = self.up = False
        self._reset()

    def send(self, message: Message) -> None:
        if self.alive:
            self.inbox.append(message)

    def die(self) -> None:
        """End as a killed process does: some of what it had sent still arrives, then the server learns of it."""
        self.alive = self.up = False
        self.deaths += 1
        for _ in range(self.rng.randint(0, len(self.outbox))):
            self.deliver()
        self._reset()
        asyncio.get_running_loop().call_later(self.rng.choice([0, 0.01]), self._on_death, self, "signal SIGKILL")

    def deliver(self) -> None:
        """Pass the oldest message on to the coordinator."""
        if self.outbox:
            self._on_message(self.outbox.popleft())

    def step(self) -> None:
        """Do one thing: take a message, go on with a request, acknowledge a slot, or send something off."""
        if not self.up:
            return
        choice = self.rng.random()
        if choice < 0.4 and self.inbox:
            message = self.inbox.popleft()
            self.log.append(message)
            self.take(message)
        elif choice < 0.7 and self.work:
            self.go_on(self.work[self.rng.choice(list(self.work))])
        elif choice < 0.8 and self.touched and self.lane:
            slot = self.rng.choice(list(self.touched))
            if not self.holds(slot):
                assert self.pool is not None
                getattr(self.pool, self.lane)[slot] = self.touched.pop(slot)
        else:
            self.deliver()

    def holds(self, slot: int) -> bool:
        """Whether a request of this slot is still being worked on."""
        return any(getattr(work.message, "slot", -1) == slot for work in self.work.values())

    def touch(self, slot: int, generation: int) -> None:
        """A worker begins to use a slot; nobody else may be using it."""
        assert slot not in self.touched, f"slot {slot} was given away while {self.name} still uses it"
        assert self.pool is not None
        assert int(self.pool.generation[slot]) == generation
        self.touched[slot] = generation

    def take(self, message: Message) -> None:
        raise NotImplementedError

    def go_on(self, work: Work) -> None:
        raise NotImplementedError


class ThinkerDouble(StageDouble):
    """Writes replies of a few numbered words; hears ``n samples``."""

    lane = "thinker_ack"

    def _reset(self) -> None:
        super()._reset()
        self.media: dict[int, bytes] = {}

    def take(self, message: Message) -> None:
        match message:
            case Attach():
                assert self.pool is not None
                self.media[message.id] = self.pool.read_bay(message.bay, message.size)
                self.work[message.id] = Work(message)
            case Generate():
                self.used = [self.media.pop(medium.number) for turn in message.turns for medium in turn.media]
                if message.turns[-1].text == "refuse me":
                    self.outbox.append(Failed(message.id, "no", invalid=True, param="messages"))
                    self.outbox.append(Released(message.id, 0))
                    return
                if message.rows:
                    self.touch(message.slot, message.generation)
                self.work[message.id] = Work(message, left=self.rng.randint(0, 6))
            case Transcribe():
                self.work[message.id] = Work(message)
            case Abort():
                self.media.pop(message.id, None)
                if (work := self.work.get(message.id)) is not None:
                    work.aborted = True

    def go_on(self, work: Work) -> None:
        message = work.message
        if isinstance(message, Attach):
            del self.work[message.id]
            self.outbox.append(Attached(message.id))
            return
        if isinstance(message, Transcribe):
            del self.work[message.id]
            heard = Transcription(f"{message.count}")
            self.outbox.append(Failed(message.id, "cancelled") if work.aborted else Transcript(message.id, heard, 0.1))
            return
        ack = message.generation if message.rows else 0
        if work.aborted:
            del self.work[message.id]
            self.outbox.append(Released(message.id, ack))
        elif work.left:
            work.left -= 1
            count = self.rng.randint(1, 2)
            work.text += [f" {message.id}-{len(work.text) + index}" for index in range(count)]
            self.outbox.append(Piece(message.id, tuple(work.text[-count:]), 0))
        else:
            del self.work[message.id]
            self.outbox.append(Written(message.id, self.rng.choice(["stop", "length"]), 7, 3, len(work.text)))
            self.outbox.append(Released(message.id, ack))

    def break_off(self) -> bool:
        """As a host whose engine core died: it lets go of a request before its end, and then dies."""
        writing = [number for number, work in self.work.items() if isinstance(work.message, Generate)]
        if not self.up or not writing:
            return False
        number = self.rng.choice(writing)
        while self.outbox:
            self.deliver()
        self._on_message(Released(number, self.work.pop(number).message.generation))
        self.die()
        return True


def steps_of(codes: Iterable[int]) -> bytes:
    """Steps, each nothing but a code."""
    return np.array(list(codes), np.uint16).tobytes()


def codes_of(steps: bytes) -> list[int]:
    """What :func:`steps_of` was given."""
    return np.frombuffer(steps, np.uint16).tolist()


class TalkerDouble(StageDouble):
    """Says three codes for each piece of text, none before its piece."""

    lane = "talker_ack"

    def take(self, message: Message) -> None:
        match message:
            case Speak():
                self.touch(message.slot, message.generation)
                self.work[message.id] = Work(message)
            case Text():
                if (work := self.work.get(message.id)) is not None:
                    assert not work.final, "text after its end"
                    work.text += message.pieces
                    work.left += 3 * len(message.pieces)
                    work.final = message.final
            case Abort():
                if (work := self.work.get(message.id)) is not None:
                    work.aborted = True

    def go_on(self, work: Work) -> None:
        number = work.message.id
        if work.aborted or (work.final and not work.left):
            del self.work[number]
            if not work.aborted:
                self.outbox.append(Spoken(number, "end"))
            self.outbox.append(Released(number, work.message.generation))
        elif work.left:
            count = self.rng.randint(1, min(4, work.left))
            work.left -= count
            codes = tuple(self.rng.randrange(4375) for _ in range(count))
            self.outbox.append(Codes(number, steps_of(codes), (12.5,)))


class VoiceBoxDouble(StageDouble):
    """A code sounds as one step of samples of its own number; its state is the sum of all codes so far.

    As at the real one's door, the last samples of a chunk are held back until the next.
    """

    def _reset(self) -> None:
        super()._reset()
        self.withhold = 0  # of so many chunks from now on the sound can't be marked
        self.held: dict[int, np.ndarray] = {}
        self.given: dict[int, int] = {}

    def take(self, message: Message) -> None:
        if isinstance(message, Abort):
            self.held.pop(message.id, None)
            if self.work.pop(message.id, None) is not None:
                self.outbox.append(Failed(message.id, "aborted"))
            return
        assert isinstance(message, Decode)
        assert message.id not in self.work, "one chunk of a reply at a time"
        assert (message.start == 0) == (message.id not in self.held)
        if message.start == 0:
            self.held[message.id], self.given[message.id] = np.zeros(0, np.int16), 0
        self.work[message.id] = Work(message)

    def go_on(self, work: Work) -> None:
        message = work.message
        del self.work[message.id]
        if self.withhold and not message.last:
            self.withhold -= 1
            del self.held[message.id]
            self.outbox.append(Failed(message.id, "The sound is withheld."))
            return
        new = codes_of(message.steps)[message.left : message.left + message.emit]
        assert len(new) == message.emit
        assert self.pool is not None
        sound = np.concatenate([self.held.pop(message.id), np.repeat(np.array(new, np.int16), STEP_SAMPLES)])
        if not message.last:
            sound, self.held[message.id] = sound[:-HELD_BACK], sound[-HELD_BACK:]
        start = self.given[message.id]
        self.given[message.id] += len(sound)
        self.pool.write_pcm(message.slot, start, sound)
        total = sum(new) + (int(message.state.decode()) if message.state else 0)
        self.outbox.append(Sound(message.id, start, len(sound), str(total).encode()))


DOUBLES: dict[str, type[StageDouble]] = {
    "thinker": ThinkerDouble,
    "talker": TalkerDouble,
    "voicebox": VoiceBoxDouble,
}
