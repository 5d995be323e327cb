"""What is sent of a call: frames become packets on an absolute clock, and the receiver's reports are heeded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from voicechat.contract.sound import Pcm
from voicechat.media import codecs
from voicechat.media.playout import FRAME_MS, SILENCE, PlayoutClock
from voicechat.media.rate import RateControl
from voicechat.media.rtp import RtpReader, RtpWriter
from voicechat.media.sdp import Codec

REPORT_S = 1.0
"""Seconds between reports, half of it more or less (RFC 3550 section 6.3.1)."""

_SOONEST_S = 0.01
"""Least time between two packets: what is late leaves at twice the pace, not in a burst."""

SETTLED_FRAMES = 10
"""After so many frames of silence the packets that follow are all alike: the last one is sent again and again, for a
coder takes as long for silence as for speech."""


class Sender:
    """Numbers, codes and reports one stream; ``send`` and ``send_report`` take the finished packets."""

    def __init__(
        self,
        codec: Codec,
        ssrc: int,
        cname: str,
        bitrate: int,
        send: Callable[[bytes], object],
        send_report: Callable[[bytes], object],
    ) -> None:
        self.codec = codec
        self.rate = RateControl(bitrate, codec.max_bitrate)
        self.clock = PlayoutClock()
        self._send = send
        self._send_report = send_report
        self._encoder = codecs.encoder(codec.name, self.rate.bitrate)
        self._frame = codec.clock * FRAME_MS // 1000
        self._writer = RtpWriter(
            ssrc, cname, codec.payload_type, codec.clock, random.getrandbits(15), random.getrandbits(31)
        )
        self._sent_tick = -2
        self._report_at = 0.0
        self._silent = 0  # frames, up to now
        self._silence = b""

    def wait(self, now: float) -> float:
        """Seconds until the next frame is due, and counts it."""
        return max(_SOONEST_S, self.clock.wait(now)) if self.clock.ticks else self.clock.wait(now)

    def frame(self, pcm: Pcm, now: float) -> None:
        """Send the frame of this tick: int16 ``[480]``."""
        tick = self.clock.ticks
        payload = self._coded(pcm)
        marker = tick != self._sent_tick + 1
        self._sent_tick = tick
        self._send(self._writer.packet(payload, tick * self._frame, now, marker=marker))

    def _coded(self, pcm: Pcm) -> bytes:
        if pcm is not SILENCE and pcm.any():
            self._silent = 0
            return self._encoder.encode(pcm)
        if self._silent < SETTLED_FRAMES:
            self._silent += 1
            self._silence = self._encoder.encode(pcm)
        return self._silence

    def report(self, reader: RtpReader, now: float) -> None:
        """Tell what was sent and received, if it is time to."""
        if now >= self._report_at:
            self._report_at = now + REPORT_S * random.uniform(0.5, 1.5)
            self._send_report(self._writer.report(now, time.time(), reader.report(now)))

    def heed(self, packet: bytes, now: float) -> None:
        """Follow what an RTCP packet of the receiver says."""
        for report in self._writer.read(packet, now):
            if self.rate.take(report):
                self._encoder.adapt(self.rate.bitrate, self.rate.expected_loss)
