"""From RTP packets to an even stream of sound for the ears: order, losses and pauses. Pure; times are given.

Ears need no playout delay: a packet that arrives in order is decoded at once, and only a gap makes its followers wait,
for at most :data:`MAX_WAIT_MS`. What is lost by then is repaired from the next packet's FEC data or concealed, so that
the stream's time stays the sender's time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voicechat.contract.sound import EARS_RATE, FRAME_MS, FRAME_SAMPLES, EarsPcm
from voicechat.media.codecs import OpusVoice, VoiceDecoder, VoiceError

MAX_WAIT_MS = 60
"""How long packets wait for one that was overtaken."""

MAX_HELD = 12
"""Packets held while waiting."""

MAX_FILL_MS = 1_000
"""Longest stretch of missing sound that is filled in; longer ones are cut to this."""

MAX_CONCEALED_MS = 100
"""Longest stretch that is concealed; what is missing beyond it is silence."""

_SEQUENCES = 1 << 16
_TIMESTAMPS = 1 << 32
_RESTART = 500  # a jump of this many sequence numbers is a new stream, not a loss
_QUANTUM = EARS_RATE // 400  # libopus conceals in steps of 2.5 ms


@dataclass(frozen=True, slots=True)
class RtpAudio:
    """One received packet: 16-bit sequence number, 32-bit timestamp on the codec's clock, payload."""

    sequence: int
    timestamp: int
    payload: bytes


@dataclass(slots=True)
class MicrophoneStats:
    """Counts since the stream began."""

    packets: int = 0
    lost: int = 0
    late: int = 0
    invalid: int = 0
    filled_ms: int = 0


class MicrophoneStream:
    """Turns one sender's packets into 20 ms frames (float32, shape ``[320]``) for the VAD and the ears; ``decoder``
    knows what they are coded with (Opus unless it is given)."""

    def __init__(self, decoder: VoiceDecoder | None = None) -> None:
        self.stats = MicrophoneStats()
        self._decoder: VoiceDecoder = OpusVoice() if decoder is None else decoder
        self._clock = self._decoder.clock
        self._held: dict[int, RtpAudio] = {}
        self._next: int | None = None  # sequence number that is due
        self._expected: int | None = None  # timestamp that is due
        self._waiting_since: float | None = None
        self._last_arrival: float | None = None
        self._rest = np.zeros(0, dtype=np.float32)
        self._run_ahead = 0  # clock units that tick() has already filled in

    @property
    def last_arrival(self) -> float | None:
        """When the last packet came, in seconds of the caller's clock; None before the first."""
        return self._last_arrival

    def restart(self) -> None:
        """The packets that follow are another stream's, with numbers and times of its own."""
        self._held.clear()
        self._next = self._expected = self._waiting_since = None

    def push(self, packet: RtpAudio, now: float) -> list[EarsPcm]:
        """Take a packet that arrived at ``now`` (seconds); the frames that are complete by it."""
        self.stats.packets += 1
        self._last_arrival = now
        if self._next is None:
            self._next = packet.sequence
        ahead = (packet.sequence - self._next) % _SEQUENCES
        behind = (self._next - packet.sequence) % _SEQUENCES
        if min(ahead, behind) >= _RESTART:
            self._held.clear()
            self._next, self._expected, ahead = packet.sequence, None, 0
        elif behind and behind < ahead:
            self.stats.late += 1
            return []
        self._held[packet.sequence] = packet
        sound = self._in_order()
        if len(self._held) > MAX_HELD:
            sound += self._skip_gap()
        if not self._held:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        return self._frames(sound)

    def tick(self, now: float) -> list[EarsPcm]:
        """Give up on what is overdue at ``now``; the frames that are complete by it."""
        if self._waiting_since is None or now - self._waiting_since < MAX_WAIT_MS / 1000:
            return []
        sound = self._skip_gap()
        self._waiting_since = now if self._held else None
        return self._frames(sound)

    def starve(self, now: float, grace: float = 0.1) -> int:
        """Whole silent frames by which the stream is behind ``now`` by more than ``grace`` seconds.

        The caller lets them pass as silence; what the sender leaves out afterwards is filled in less accordingly.
        """
        if self._last_arrival is None:
            return 0
        missing = now - self._last_arrival - grace - self._run_ahead / self._clock
        count = max(0, int(missing * 1000 / FRAME_MS))
        self._run_ahead += count * FRAME_MS * self._clock // 1000
        return count

    def _in_order(self) -> list[EarsPcm]:
        sound: list[EarsPcm] = []
        while self._next is not None and (packet := self._held.pop(self._next, None)) is not None:
            sound += self._decode(packet)
            self._next = (self._next + 1) % _SEQUENCES
        return sound

    def _skip_gap(self) -> list[EarsPcm]:
        """Give up the packets before the first one held."""
        assert self._next is not None
        due = self._next
        if not self._held:
            return []
        first = min(self._held, key=lambda sequence: (sequence - due) % _SEQUENCES)
        self.stats.lost += (first - due) % _SEQUENCES
        self._next = first
        return self._in_order()

    def _decode(self, packet: RtpAudio) -> list[EarsPcm]:
        try:
            length = self._decoder.duration(packet.payload)
            sound = self._fill_before(packet)
            sound.append(self._decoder.decode(packet.payload))
        except VoiceError:
            self.stats.invalid += 1
            return []
        self._expected = (packet.timestamp + length) % _TIMESTAMPS
        return sound

    def _fill_before(self, packet: RtpAudio) -> list[EarsPcm]:
        """Sound for the time between the last packet's end and ``packet``."""
        ran_ahead, self._run_ahead = self._run_ahead, 0
        if self._expected is None:
            return []
        gap = (packet.timestamp - self._expected) % _TIMESTAMPS
        if gap >= _TIMESTAMPS // 2:
            return []  # overlaps what was decoded: a sender that restarts its clock
        missing = max(0, gap - ran_ahead) * EARS_RATE // self._clock
        missing = min(missing, EARS_RATE * MAX_FILL_MS // 1000)
        self.stats.filled_ms += missing * 1000 // EARS_RATE
        repairable = min(missing, FRAME_SAMPLES) // _QUANTUM * _QUANTUM
        concealable = min(missing - repairable, EARS_RATE * MAX_CONCEALED_MS // 1000) // _QUANTUM * _QUANTUM
        silent = missing - repairable - concealable
        sound: list[EarsPcm] = []
        if concealable:
            sound.append(self._decoder.conceal(concealable))
        if silent:
            sound.append(np.zeros(silent, dtype=np.float32))
        if repairable:
            sound.append(self._decoder.repair(packet.payload, repairable))
        return sound

    def _frames(self, sound: list[EarsPcm]) -> list[EarsPcm]:
        if not sound:
            return []
        joined = np.concatenate([self._rest, *sound])
        count = len(joined) // FRAME_SAMPLES
        self._rest = joined[count * FRAME_SAMPLES :]
        return [joined[i * FRAME_SAMPLES : (i + 1) * FRAME_SAMPLES] for i in range(count)]
