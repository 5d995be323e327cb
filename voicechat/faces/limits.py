"""How much each caller may ask for: buckets that refill, and counts of what is live.

A bucket holds a minute's worth and refills steadily (a token bucket), so that a burst is taken as long as the mean
holds. Sound is paid for when it is known how much it was; a bucket that is in debt refuses until it has refilled.
Pure: time is what the caller says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from voicechat.faces.keys import KeyLimits

MINUTE = 60.0


class Bucket:
    """``per_minute`` units a minute; full at first."""

    def __init__(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """Units that are there; below 0 while in debt."""
        self._level = min(self.per_minute, self._level + max(0.0, now - self._at) * self.per_minute / MINUTE)
        self._at = max(now, self._at)
        return self._level

    def take(self, units: float, now: float) -> None:
        """Take so many, also into debt."""
        self._level = self.level(now) - units

    def wait(self, units: float, now: float) -> float:
        """Seconds until ``units`` are there; 0 if they are."""
        return max(0.0, (units - self.level(now)) * MINUTE / self.per_minute)

    def refill(self, now: float) -> float:
        """Seconds until it is full."""
        return self.wait(self.per_minute, now)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused. ``what`` is a word for metrics and OpenAI's error type, ``wait`` seconds if known."""

    what: str
    message: str
    wait: float


@dataclass(slots=True)
class Account:
    """What one caller has used. The limits of a key may change while it is used (the file was read again)."""

    name: str
    limits: KeyLimits
    live_replies: int = 0
    live_sessions: int = 0
    _requests: Bucket | None = None
    _audio: Bucket | None = None

    def adopt(self, limits: KeyLimits) -> None:
        """Go on under other limits."""
        if limits != self.limits:
            self.limits, self._requests, self._audio = limits, None, None

    def request(self, now: float) -> Refusal | None:
        """Count a request, or say why it is refused."""
        requests, audio = self._buckets(now)
        if requests is not None and (wait := requests.wait(1, now)) > 0:
            limit = self.limits.requests_per_minute
            return self._refusal("requests", f"requests per min. Limit: {limit} / min", wait)
        if (debt := self._debt(audio, now)) is not None:
            return debt
        if requests is not None:
            requests.take(1, now)
        return None

    def reply(self, now: float) -> Refusal | None:
        """Whether one more reply may be made: not while as many as allowed are live, nor in debt for sound."""
        limit = self.limits.replies
        if limit is not None and self.live_replies >= limit:
            return self._refusal("replies", f"replies at the same time. Limit: {limit}", 1.0)
        return self._debt(self._buckets(now)[1], now)

    def session(self) -> Refusal | None:
        """Whether one more realtime session may be opened."""
        limit = self.limits.sessions
        if limit is not None and self.live_sessions >= limit:
            return self._refusal("sessions", f"sessions at the same time. Limit: {limit}", 10.0)
        return None

    def heard(self, seconds: float, now: float) -> None:
        """Pay for sound that was heard or said."""
        _, audio = self._buckets(now)
        if audio is not None:
            audio.take(seconds, now)

    def headers(self, now: float) -> dict[str, str]:
        """``x-ratelimit-*`` of what is limited, in OpenAI's form."""
        requests, audio = self._buckets(now)
        shown: dict[str, str] = {}
        for name, bucket in (("requests", requests), ("audio-seconds", audio)):
            if bucket is not None:
                shown[f"x-ratelimit-limit-{name}"] = f"{bucket.per_minute:g}"
                shown[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level(now))))
                shown[f"x-ratelimit-reset-{name}"] = f"{bucket.refill(now):.3f}s"
        return shown

    def _buckets(self, now: float) -> tuple[Bucket | None, Bucket | None]:
        limits = self.limits
        if self._requests is None and limits.requests_per_minute is not None:
            self._requests = Bucket(limits.requests_per_minute, now)
        if self._audio is None and limits.audio_seconds_per_minute is not None:
            self._audio = Bucket(limits.audio_seconds_per_minute, now)
        return self._requests, self._audio

    def _debt(self, audio: Bucket | None, now: float) -> Refusal | None:
        if audio is None or audio.level(now) > 0:
            return None
        allowed = f"seconds of audio per min. Limit: {audio.per_minute:g} / min"
        return self._refusal("audio", allowed, audio.wait(1, now))

    def _refusal(self, what: str, limit: str, wait: float) -> Refusal:
        return Refusal(what, f"Rate limit reached for {self.name} on {limit}. Please try again later.", wait)


@dataclass(slots=True)
class Accounts:
    """One account for each key, and one for all callers together."""

    total: KeyLimits = field(default_factory=KeyLimits)
    per_key: KeyLimits = field(default_factory=KeyLimits)
    """Of keys that have no limits of their own."""
    everybody: Account = field(init=False)
    _accounts: dict[str, Account] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.everybody = Account("all callers", self.total)

    def of(self, name: str, limits: KeyLimits) -> Account:
        """The account of a key."""
        merged = KeyLimits(
            *(
                own if (own := getattr(limits, field)) is not None else getattr(self.per_key, field)
                for field in KeyLimits.__dataclass_fields__
            )
        )
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(f"key '{name}'", merged)
        account.adopt(merged)
        return account
