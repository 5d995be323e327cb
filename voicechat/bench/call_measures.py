"""What the packets of a call say of it, as pure functions; times in seconds of one clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from voicechat.bench.call_client import CLOCK, Packet
from voicechat.bench.measures import percentile

SPACING_MS = 20.0
NEAR_MS = 4.0
"""A packet is on time if it came so near to 20 ms after the one before."""

LEAST_DELAY_S = 0.04
QUANTILE = 0.97
REMEMBERED = 100
"""A browser's jitter buffer (libwebrtc's NetEq) waits as long as 97 % of the packets of late had needed; here of the
last 100, at least 40 ms."""

STRETCH = 0.1
"""It plays so much faster or slower until its delay is what it wants."""
_FRAME_S = 0.02
_OVERTAKEN = 50

BAD_RUN_S = 0.1
"""A call is good if its player never had to fill in for longer than this at once, nor for more than ``BAD_SHARE``."""
BAD_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Heard:
    """What a player had to fill in: share of the sound, how often, for how long at most, and its mean delay."""

    share: float
    underruns: int
    longest_s: float
    delay_s: float

    @property
    def good(self) -> bool:
        """True if nobody would call it broken."""
        return self.longest_s <= BAD_RUN_S and self.share <= BAD_SHARE


def intervals_ms(packets: Sequence[Packet]) -> list[float]:
    """Between one packet and the next that was sent, in milliseconds; where one is missing there is none."""
    return [
        1000 * (after.at - before.at)
        for before, after in zip(packets, packets[1:], strict=False)
        if (after.sequence - before.sequence) & 0xFFFF == 1
        and (after.timestamp - before.timestamp) & 0xFFFFFFFF == CLOCK // 50
    ]


@dataclass(frozen=True, slots=True)
class Slot:
    """20 ms of a player: the packet's number, counted from the first that came, how many seconds are filled in before
    it is played, or in its place (``lost``: it is not there, or too late), and how late it is then, beyond the least
    that a packet of late had needed."""

    number: int
    filled_s: float
    lost: bool
    delay_s: float


def played(packets: Sequence[Packet]) -> list[Slot]:
    """Play ``packets``, in the order in which they came, by a browser's buffer.

    It fills in while it has nothing to play, and goes on with what comes then, later than before; a packet that comes
    after those behind it had to be played is not played any more. Sound that the sender left out on purpose (timestamps
    jump, sequence numbers don't) is not missed.
    """
    if not packets:
        return []
    first = packets[0]
    came: dict[int, tuple[float, float]] = {}  # when, and where its sound belongs
    for packet in packets:
        number = _signed(packet.sequence - first.sequence & 0xFFFF, 16)
        came.setdefault(number, (packet.at, _signed(packet.timestamp - first.timestamp & 0xFFFFFFFF, 32) / CLOCK))
    lags: deque[float] = deque(maxlen=REMEMBERED)
    waits: deque[float] = deque(maxlen=REMEMBERED)
    slots: list[Slot] = []
    due = came[min(came)][0] + LEAST_DELAY_S
    place, delay = came[min(came)][1], LEAST_DELAY_S
    for number in range(min(came), max(came) + 1):
        at, sound = came.get(number, (math.inf, place))
        due += max(0.0, sound - place)
        overtaken = any(came.get(n, (math.inf, 0.0))[0] <= at for n in range(number + 1, number + _OVERTAKEN))
        lost = at > due and overtaken
        filled = _FRAME_S if lost else max(0.0, at - due)
        step = _FRAME_S
        if at < math.inf:
            due = due if lost else max(due, at)
            lags.append(at - sound)
            waits.append(lags[-1] - min(lags))
            delay = due - sound - min(lags)
            wanted = max(LEAST_DELAY_S, percentile(list(waits), QUANTILE) + _FRAME_S)
            if abs(delay - wanted) > _FRAME_S:
                step *= 1 - STRETCH if delay > wanted else 1 + STRETCH
        slots.append(Slot(number, filled, lost, delay))
        due += step
        place = sound + _FRAME_S
    return slots


def buffered(packets: Sequence[Packet]) -> Heard | None:
    """What a browser's buffer makes of ``packets``; None if there are hardly any."""
    if len(packets) < 2:
        return None
    slots = played(packets)
    gaps: list[float] = []
    going = False
    for slot in slots:
        if slot.filled_s:
            gaps = [*gaps[:-1], gaps[-1] + slot.filled_s] if going else [*gaps, slot.filled_s]
        going = bool(slot.filled_s)
    delay = sum(slot.delay_s for slot in slots) / len(slots)
    return Heard(sum(gaps) / (len(slots) * _FRAME_S), len(gaps), max(gaps, default=0.0), delay)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
