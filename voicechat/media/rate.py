"""How many bits to send, and how many of them to spend on repair, by what the receiver reports. Pure.

The loss-based half of Google's congestion control (draft-ietf-rmcat-gcc-02 section 6): above 10 % loss the rate falls
by half of the share that was lost, below 2 % it grows by 5 %; in between it stays. Opus spends part of its bits on
repair by the loss that it is told to expect.
"""

from __future__ import annotations

from voicechat.media.rtp import ReceptionReport

LOWEST, HIGHEST = 12_000, 48_000
"""Bits per second; speech is clear at the one, and gains nothing beyond the other."""

EXPECTED_LOSS = 5
"""Percent, before a report has come; never less, for loss comes without a warning."""

MOST_EXPECTED = 30
_HIGH, _LOW = 0.10, 0.02
_FALL, _RISE = 0.5, 1.05
_MEMORY = 0.25


class RateControl:
    """Follows one receiver. ``highest``: what it wants at most."""

    def __init__(self, bitrate: int, highest: int | None = None) -> None:
        self._highest = max(LOWEST, min(HIGHEST, highest or HIGHEST))
        self.bitrate = max(LOWEST, min(self._highest, bitrate))
        """Bits per second."""
        self.expected_loss = EXPECTED_LOSS
        """Percent."""
        self.round_trip: float | None = None
        """Seconds, if a report told it."""
        self._loss = 0.0

    def take(self, report: ReceptionReport) -> bool:
        """Note a report; True if what the encoder was told has changed."""
        before = (self.bitrate, self.expected_loss)
        if report.round_trip is not None:
            self.round_trip = report.round_trip
        lost = report.fraction_lost / 256
        # loss that rises is believed at once, loss that falls only by and by
        self._loss = lost if lost > self._loss else self._loss + _MEMORY * (lost - self._loss)
        if lost > _HIGH:
            self.bitrate = max(LOWEST, int(self.bitrate * (1 - _FALL * lost)))
        elif lost < _LOW:
            self.bitrate = min(self._highest, int(self.bitrate * _RISE))
        self.expected_loss = max(EXPECTED_LOSS, min(MOST_EXPECTED, round(100 * self._loss)))
        return before != (self.bitrate, self.expected_loss)
