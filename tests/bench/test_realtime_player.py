"""The simulated loudspeaker and the live microphone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.bench.measures import play
from voicechat.bench.realtime_player import RATE, Place, Player
from voicechat.bench.realtime_trace import LiveMicrophone, News, Piece, Record

FIRST, SECOND = Place("resp_1", "item_1", 0), Place("resp_2", "item_2", 0)


def loud(seconds: float) -> np.ndarray:
    return np.full(round(seconds * RATE), 3000, np.int16)


def heard(player: Player, reply: str) -> float:
    """Seconds of a reply that were played."""
    return sum(len(piece.pcm) for piece in player.pieces if piece.reply == reply and piece.played is not None) / RATE


def test_sound_is_played_one_after_another_from_when_it_came() -> None:
    player = Player()
    player.push(10.0, FIRST, loud(0.5))
    player.push(10.1, FIRST, loud(0.5))
    assert [piece.played for piece in player.pieces] == pytest.approx([10 + 0.02 * index for index in range(50)])
    assert {piece.received for piece in player.pieces} == {10.0, 10.1}
    assert player.playing(10.99)
    assert not player.playing(11.01)
    player.push(12.0, FIRST, loud(0.1))
    assert player.pieces[50].played == 12.0, "it stood still until more came"


def test_stopping_tells_how_much_was_heard() -> None:
    player = Player()
    player.push(10.0, FIRST, loud(2.0))
    stopped = player.stop(10.731)
    assert stopped is not None
    assert stopped.place == FIRST
    assert stopped.played_ms == 731
    assert heard(player, "resp_1") == pytest.approx(0.731, abs=0.001)
    assert not player.playing(10.8)
    assert player.stop(10.8) is None
    player.push(10.9, FIRST, loud(1.0))
    assert heard(player, "resp_1") == pytest.approx(0.731, abs=0.001), "what comes late is not played"
    player.push(11.0, SECOND, loud(0.5))
    assert heard(player, "resp_2") == 0.5
    assert player.pieces[-1].played == pytest.approx(11.48)


def test_a_gap_does_not_count_as_heard() -> None:
    player = Player()
    player.push(10.0, FIRST, loud(0.5))
    player.push(11.0, FIRST, loud(0.5))
    stopped = player.stop(11.2)
    assert stopped is not None
    assert stopped.played_ms == pytest.approx(700, abs=1)


def test_of_two_items_the_one_that_plays_is_cut_and_both_are_silent() -> None:
    player = Player()
    player.push(10.0, FIRST, loud(0.5))
    player.push(10.1, SECOND, loud(0.5))
    stopped = player.stop(10.2)
    assert stopped is not None
    assert (stopped.place, stopped.played_ms) == (FIRST, pytest.approx(200, abs=1))
    player.push(10.3, SECOND, loud(0.5))
    assert heard(player, "resp_2") == 0
    second = Player()
    second.push(10.0, FIRST, loud(0.5))
    second.push(10.1, SECOND, loud(0.5))
    stopped = second.stop(10.75)
    assert stopped is not None
    assert (stopped.place, stopped.played_ms) == (SECOND, pytest.approx(250, abs=1))


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20)), min_size=1, max_size=10), st.floats(0, 5))
def test_no_more_is_heard_than_came_and_than_time_passed(chunks: list[tuple[float, int]], stop: float) -> None:
    player, now = Player(), 0.0
    for wait, tens in chunks:
        now += wait
        player.push(now, FIRST, loud(tens * 0.01))
    total = sum(tens for _, tens in chunks) * 0.01
    last = max(piece.played or 0.0 for piece in player.pieces) + 0.02
    continuity = play(player.chunks["resp_1"])
    assert last == pytest.approx(chunks[0][0] + total + continuity.total_s, abs=0.021)
    stopped = player.stop(now + stop)
    if stopped is None:
        assert heard(player, "resp_1") == pytest.approx(total)
    else:
        assert stopped.played_ms / 1000 <= min(total, now + stop - chunks[0][0]) + 1e-6
        assert heard(player, "resp_1") == pytest.approx(stopped.played_ms / 1000, abs=0.002)


def test_the_microphone_is_never_silent_and_knows_when_what_was_sent() -> None:
    microphone = LiveMicrophone(24_000)
    assert microphone.begun is None
    for index in range(10):
        microphone.note(microphone.next_frame(), 100 + 0.02 * index)
    sound = np.concatenate([np.zeros(1000, np.float32), np.full(500, 0.5, np.float32)])
    said = microphone.say(sound)
    again = microphone.say(sound)
    assert (said.start, again.start) == (10 * 480, 10 * 480 + 1500)
    assert microphone.sent_at(said.start) is None
    for index in range(10, 20):
        microphone.note(microphone.next_frame(), 100 + 0.02 * index)
    sent = np.concatenate(microphone.sent)
    loud_at = np.flatnonzero(np.abs(sent) > 10_000)
    assert (loud_at[0], loud_at[499]) == (said.start + 1000, said.start + 1499)
    assert loud_at[500] == again.start + 1000
    assert microphone.sent_at(int(loud_at[0])) == pytest.approx(100 + 0.02 * (5800 // 480))
    frames = sent.reshape(-1, 480).astype(float)
    assert (frames.std(axis=1) > 5).all(), "a quiet room is not silence"


def test_a_microphone_knows_that_it_was_late() -> None:
    microphone = LiveMicrophone(24_000)
    assert microphone.late_s == 0
    for index, late in enumerate([0.0, 0.001, 0.15, 0.13, 0.0]):
        microphone.note(microphone.next_frame(), 50 + 0.02 * index + late)
    assert microphone.late_s == pytest.approx(0.15)


def test_a_background_is_under_everything() -> None:
    microphone = LiveMicrophone(24_000)
    microphone.surround(np.full(700, 0.1, np.float32))
    sent = np.concatenate([microphone.next_frame() for _ in range(4)])
    assert sent.mean() == pytest.approx(3277, rel=0.01)


def test_pieces_know_whether_they_are_heard() -> None:
    assert Piece(0.0, 0.0, loud(0.02)).audible
    assert not Piece(0.0, 0.0, np.full(480, 100, np.int16)).audible
    assert not Piece(0.0, 0.0, np.zeros(0, np.int16)).audible


async def test_news_wakes_and_gives_up() -> None:
    news = News()
    await news.wait(0.01)
    record = Record(events=[(1.0, {"type": "a"}), (2.0, {"type": "b"}), (3.0, {"type": "a"})])
    assert [at for at, _ in record.all("a", 1.5)] == [3.0]
    assert record.first("a") == 1.0
    assert record.first("c") is None
