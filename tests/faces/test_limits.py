"""Buckets that refill, and accounts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voicechat.faces.keys import KeyLimits
from voicechat.faces.limits import Account, Accounts, Bucket


@given(
    st.floats(1, 1000),
    st.lists(st.tuples(st.floats(0, 30), st.floats(0, 20)), min_size=1, max_size=50),
)
def test_no_more_than_a_burst_and_the_mean_is_ever_taken(per_minute: float, steps: list[tuple[float, float]]) -> None:
    """Over any time a bucket gives at most what it holds and what flows in: the definition of a token bucket."""
    bucket, now, taken = Bucket(per_minute, 0.0), 0.0, 0.0
    for later, units in steps:
        now += later
        if bucket.wait(units, now) == 0:
            bucket.take(units, now)
            taken += units
        assert taken <= per_minute * (1 + now / 60) + 1e-6
        assert bucket.level(now) <= per_minute + 1e-9


@given(st.floats(1, 1000), st.floats(0, 1000), st.floats(0, 500))
def test_the_wait_is_exact(per_minute: float, taken: float, wanted: float) -> None:
    bucket = Bucket(per_minute, 0.0)
    bucket.take(taken, 0.0)
    wanted = min(wanted, per_minute)
    wait = bucket.wait(wanted, 0.0)
    assert bucket.level(wait) >= wanted - 1e-6 * per_minute


def test_debts_are_paid_by_waiting() -> None:
    account = Account("a", KeyLimits(audio_seconds_per_minute=60))
    assert account.request(0.0) is None
    account.heard(90.0, 0.0)
    refusal = account.request(0.0)
    assert refusal is not None and refusal.what == "audio" and refusal.wait == 31.0
    assert account.request(29.0) is not None
    assert account.reply(29.0) is not None, "a session that is open does not speak on in debt either"
    assert account.request(32.0) is None


def test_replies_and_sessions_at_the_same_time() -> None:
    account = Account("a", KeyLimits(replies=1, sessions=2))
    assert account.reply(0.0) is account.session() is None
    account.live_replies, account.live_sessions = 1, 2
    assert account.reply(0.0) is not None and account.session() is not None


def test_a_key_without_limits_has_the_default_ones() -> None:
    accounts = Accounts(per_key=KeyLimits(requests_per_minute=5, replies=2))
    account = accounts.of("ann", KeyLimits(replies=7))
    assert account.limits == KeyLimits(requests_per_minute=5, replies=7)
    account.request(0.0)
    assert accounts.of("ann", KeyLimits(replies=7)) is account
    assert accounts.of("ann", KeyLimits(replies=3)).limits.replies == 3
