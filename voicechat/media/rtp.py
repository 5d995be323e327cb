"""RTP and RTCP (RFC 3550) of one audio stream in each direction: headers, counts and reports. Pure; times are given."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_RTP = struct.Struct("!BBHLL")
_REPORT = struct.Struct("!LLLLLL")
_SENDER = struct.Struct("!BBHLLLLLL")
_NTP_EPOCH = 2_208_988_800
_SR, _RR, _SDES = 200, 201, 202
_WRAP32 = (1 << 32) - 1
_MAX_DROPOUT, _MAX_MISORDER = 3000, 100


@dataclass(frozen=True, slots=True)
class RtpPacket:
    """A received packet without its header extensions and padding."""

    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReceptionReport:
    """What a receiver says of a stream: packets lost since the last report as a share of 256, the highest sequence
    number that came (32 bits, with its wraps), the interval jitter in clock units, and the round-trip time in seconds,
    if it can be told."""

    ssrc: int
    fraction_lost: int
    highest_sequence: int
    jitter: int
    round_trip: float | None


def is_rtcp(data: bytes) -> bool:
    """True for RTCP where both share a port (RFC 5761 section 4)."""
    return len(data) > 1 and 192 <= data[1] <= 223


def parse_rtp(data: bytes) -> RtpPacket | None:
    """The packet in ``data``; None if it is none."""
    size = len(data)
    if size < 12 or data[0] >> 6 != 2:
        return None
    first, second, sequence, timestamp, ssrc = _RTP.unpack_from(data)
    start, end = 12 + 4 * (first & 15), size
    if first & 16:
        if size < start + 4:
            return None
        start += 4 + 4 * ((data[start + 2] << 8) | data[start + 3])
    if first & 32:
        end -= data[-1]
        if not data[-1]:
            return None
    if start > end:
        return None
    return RtpPacket(second & 127, sequence, timestamp, ssrc, data[start:end])


class RtpWriter:
    """The stream that is sent: numbers its packets, and tells of them in sender reports."""

    def __init__(self, ssrc: int, cname: str, payload_type: int, clock: int, sequence: int, timestamp: int) -> None:
        self.ssrc = ssrc
        self.payload_type = payload_type
        self._cname = cname.encode()
        self._clock = clock
        self._sequence = sequence & 0xFFFF
        self._first = timestamp & _WRAP32
        self._last: tuple[float, int] | None = None
        self._packets = 0
        self._octets = 0
        self._sent: dict[int, float] = {}

    def packet(self, payload: bytes, timestamp: int, now: float, *, marker: bool) -> bytes:
        """A packet whose sound begins ``timestamp`` clock units after the stream's start. ``marker``: it is the first
        after a pause (RFC 3551 section 4.1)."""
        moment = (self._first + timestamp) & _WRAP32
        kind = self.payload_type | 128 if marker else self.payload_type
        header = _RTP.pack(128, kind, self._sequence, moment, self.ssrc)
        self._sequence = (self._sequence + 1) & 0xFFFF
        self._packets += 1
        self._octets += len(payload)
        self._last = (now, moment)
        return header + payload

    def report(self, now: float, unix: float, reception: bytes) -> bytes:
        """A compound packet: sender report (a receiver report before the first packet) with ``reception``, and the
        stream's name. ``now`` is the clock of :meth:`packet`, ``unix`` the wall's."""
        count = len(reception) // 24
        if self._last is None:
            head = struct.pack("!BBHL", 128 | count, _RR, 1 + 6 * count, self.ssrc)
        else:
            at, moment = self._last
            moment = (moment + round((now - at) * self._clock)) & _WRAP32
            ntp = ntp_time(unix)
            self._sent[ntp >> 16 & _WRAP32] = now
            while len(self._sent) > 16:
                del self._sent[next(iter(self._sent))]
            head = _SENDER.pack(
                128 | count, _SR, 6 + 6 * count, self.ssrc, ntp >> 32, ntp & _WRAP32, moment,
                self._packets & _WRAP32, self._octets & _WRAP32,
            )  # fmt: skip
        item = struct.pack("!LBB", self.ssrc, 1, len(self._cname)) + self._cname + b"\0"
        item += b"\0" * (-len(item) % 4)
        return head + reception + struct.pack("!BBH", 129, _SDES, len(item) // 4) + item

    def read(self, data: bytes, now: float) -> Iterator[ReceptionReport]:
        """What the RTCP packet ``data`` says of this stream."""
        for kind, count, body in _compound(data):
            skip = {_SR: 24, _RR: 4}.get(kind)
            if skip is None:
                continue
            for start in range(skip, min(skip + 24 * count, len(body) - 23), 24):
                ssrc, lost, highest, jitter, last, delay = _REPORT.unpack_from(body, start)
                if ssrc == self.ssrc:
                    sent = self._sent.get(last)
                    trip = None if sent is None else max(0.0, now - sent - delay / 65_536)
                    yield ReceptionReport(ssrc, lost >> 24, highest, jitter, trip)


class RtpReader:
    """Counts of the stream that is received, as RFC 3550 appendices A.1, A.3 and A.8 take them."""

    def __init__(self, clock: int) -> None:
        self.ssrc: int | None = None
        self.jitter = 0.0
        """Of the intervals, in clock units."""
        self._clock = clock
        self._begin(0)
        self._sender_report: tuple[int, float] | None = None

    def _begin(self, sequence: int) -> None:
        self._base = self._highest = sequence
        self._cycles = 0
        self._received = 0
        self._prior = (0, 0)  # expected and received at the last report
        self._transit: float | None = None
        self.jitter = 0.0

    @property
    def lost(self) -> int:
        """Packets that never came, so far; less than none if some came twice."""
        return self._cycles + self._highest - self._base + 1 - self._received if self._received else 0

    def take(self, packet: RtpPacket, now: float) -> bool:
        """Count a packet; True if it begins another stream."""
        fresh = packet.ssrc != self.ssrc
        ahead = (packet.sequence - self._highest) & 0xFFFF
        if fresh or _MAX_DROPOUT <= ahead <= 0x10000 - _MAX_MISORDER:
            self.ssrc = packet.ssrc
            self._begin(packet.sequence)
        elif ahead < _MAX_DROPOUT:
            if packet.sequence < self._highest:
                self._cycles += 0x10000
            self._highest = packet.sequence
        self._received += 1
        transit = now * self._clock - packet.timestamp
        if self._transit is not None:
            change = abs((transit - self._transit + (1 << 31)) % (1 << 32) - (1 << 31))
            self.jitter += (change - self.jitter) / 16
        self._transit = transit
        return fresh

    def heard_report(self, data: bytes, now: float) -> None:
        """Note a sender report of the stream in the RTCP packet ``data``, for the next :meth:`report`."""
        for kind, _, body in _compound(data):
            if kind == _SR and len(body) >= 24 and struct.unpack_from("!L", body)[0] == self.ssrc:
                self._sender_report = (struct.unpack_from("!Q", body, 4)[0] >> 16 & _WRAP32, now)

    def report(self, now: float) -> bytes:
        """The reception report block of 24 bytes; none before the first packet."""
        if self.ssrc is None:
            return b""
        expected = self._cycles + self._highest - self._base + 1
        spans = (expected - self._prior[0], self._received - self._prior[1])
        self._prior = (expected, self._received)
        missing = spans[0] - spans[1]
        fraction = min(255, (missing << 8) // spans[0]) if spans[0] > 0 and missing > 0 else 0
        lost = max(-(1 << 23), min((1 << 23) - 1, expected - self._received)) & 0xFFFFFF
        last, delay = 0, 0
        if self._sender_report is not None:
            last, at = self._sender_report
            delay = max(0, min(_WRAP32, round((now - at) * 65_536)))
        highest = (self._cycles + self._highest) & _WRAP32
        return _REPORT.pack(self.ssrc, fraction << 24 | lost, highest, int(self.jitter), last, delay)


def ntp_time(unix: float) -> int:
    """Unix time as NTP's 64-bit fixed point (RFC 3550 section 4)."""
    return int((unix + _NTP_EPOCH) * (1 << 32)) & ((1 << 64) - 1)


def _compound(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, count and body (from the SSRC on) of each packet within ``data``."""
    start = 0
    while start + 4 <= len(data):
        first, kind, length = struct.unpack_from("!BBH", data, start)
        end = start + 4 + 4 * length
        if first >> 6 != 2 or end > len(data):
            return
        yield kind, first & 31, data[start + 4 : end]
        start = end
