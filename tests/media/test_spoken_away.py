"""What a client plays by itself, by the clock and by its microphone."""

import numpy as np

from voicechat.media.spoken_away import SpokenAway


def test_what_a_client_plays_is_what_it_was_sent():
    away = SpokenAway()
    away.push(np.arange(700, dtype=np.int16), 5.0)
    away.push(np.arange(700, 900, dtype=np.int16), 5.0)
    assert np.array_equal(away.next_frame(5.0), np.arange(480))
    assert np.array_equal(away.next_frame(5.02)[:420], np.arange(480, 900))
    assert not away.next_frame(5.04).any()
    away.push(np.ones(1000, np.int16), 5.06)
    away.clear()
    assert not away.next_frame(5.06).any() and away.left_s == 0


def test_a_client_without_a_microphone_piles_nothing_up():
    away, now = SpokenAway(), 0.0
    for _ in range(100):
        for _ in range(50):
            away.push(np.ones(2400, np.int16), now)
        assert away.left_s <= 5.0
        now += 7.0
    assert not away.next_frame(now).any(), "all has been played"


def test_a_microphone_that_opens_in_the_middle_hears_what_is_played_then():
    away = SpokenAway()
    away.push(np.repeat(np.arange(100, dtype=np.int16), 2400), 0.0)
    assert set(away.next_frame(5.0)) == {50}
    assert away.left_s == 4.98


def test_a_microphone_behind_the_clock_keeps_its_own_time():
    away = SpokenAway()
    away.push(np.repeat(np.arange(100, dtype=np.int16), 2400), 0.0)
    assert set(away.next_frame(0.0)) == {0}
    for frame in range(1, 50):
        assert set(away.next_frame(1.5 + frame / 50)) == {frame // 5}
    assert set(away.next_frame(4.4)) == {24}, "but no more than two seconds behind"


def test_of_what_is_sent_far_ahead_a_minute_is_kept():
    away = SpokenAway()
    for number in range(1, 91):
        away.push(np.full(24_000, number, np.int16), 0.0)
    assert away.left_s == 90 and sum(part.nbytes for part in away._queue if part.strides != (0,)) == 60 * 48_000
    heard = [int(away.next_frame(frame / 50)[0]) for frame in range(90 * 50)]
    assert heard[::50] == [*range(1, 61), *[0] * 30]
    away.push(np.full(480, 7, np.int16), 90.0)
    assert set(away.next_frame(90.0)) == {7}, "and what comes then is in its place"
