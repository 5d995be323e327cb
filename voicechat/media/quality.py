"""How a call goes over its network, in figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one call so far: packets that ``came`` from the client, or were ``lost``; how often the playout clock slipped
    (``slips``) and the playout had too little sound (``underruns``). ``jitter`` of what comes and ``round_trip`` are in
    seconds (RFC 3550, sections 6.4.1 and A.8), None where nobody has told yet."""

    came: int = 0
    lost: int = 0
    slips: int = 0
    underruns: int = 0
    jitter: float | None = None
    round_trip: float | None = None

    def after(self, earlier: Quality) -> Quality:
        """This with the counts of ``earlier`` calls added."""
        return Quality(
            self.came + earlier.came,
            self.lost + earlier.lost,
            self.slips + earlier.slips,
            self.underruns + earlier.underruns,
            self.jitter,
            self.round_trip,
        )
