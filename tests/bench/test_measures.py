"""The measures as pure functions: properties over made-up streams and sounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.speech import silence, voice
from voicechat.bench.measures import (
    GOOD_UNDERRUN_S,
    Continuity,
    first_audible,
    last_voiced,
    percentile,
    play,
    real_time_factor,
    summarize,
)

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
shares = st.floats(0, 1)
seconds = st.floats(0.001, 5)
chunks = st.lists(st.tuples(st.floats(0, 2), seconds), min_size=1, max_size=40).map(
    lambda pairs: [
        (float(at), length) for at, (_, length) in zip(np.cumsum([gap for gap, _ in pairs]), pairs, strict=True)
    ]
)


@given(values, shares)
def test_percentiles_are_those_of_numpy(numbers: list[float], share: float) -> None:
    assert percentile(numbers, share) == pytest.approx(float(np.quantile(numbers, share)), rel=1e-9, abs=1e-6)


@given(values, shares, shares)
def test_percentiles_lie_inside_and_in_order(numbers: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert min(numbers) <= percentile(numbers, low) <= percentile(numbers, high) <= max(numbers)


@given(values, st.randoms())
def test_percentiles_do_not_depend_on_order(numbers: list[float], random) -> None:
    mixed = list(numbers)
    random.shuffle(mixed)
    assert percentile(mixed, 0.5) == percentile(numbers, 0.5)


def test_what_has_no_percentile() -> None:
    with pytest.raises(ValueError):
        percentile([], 0.5)
    with pytest.raises(ValueError):
        percentile([1.0], 1.5)


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=30))
def test_a_summary_counts_what_was_taken(numbers: list[float | None]) -> None:
    taken = [number for number in numbers if number is not None]
    found = summarize(numbers)
    if not taken:
        assert found is None
        return
    assert found is not None
    assert found.count == len(taken)
    assert found.least <= found.p50 <= found.p95 <= found.most
    assert found.mean == pytest.approx(float(np.mean(taken)), abs=1e-6)


def frame_by_frame(stream: list[tuple[float, float]], tick: float = 0.001) -> float:
    """All the time that a player stands still, found by letting it run in steps of ``tick``."""
    begin, total = stream[0][0], sum(length for _, length in stream)
    played = stalled = 0.0
    now = begin
    while played < total - tick / 2:
        arrived = sum(length for at, length in stream if at <= now + 1e-9)
        if arrived > played + tick / 2:
            played += tick
        else:
            stalled += tick
        now += tick
    return stalled


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=6))
def test_the_player_is_what_a_player_would_be(pairs: list[tuple[int, int]]) -> None:
    arrivals = np.cumsum([gap for gap, _ in pairs]) / 100
    stream = [(float(at), length / 100) for at, (_, length) in zip(arrivals, pairs, strict=True)]
    assert play(stream).total_s == pytest.approx(frame_by_frame(stream), abs=0.001 * (len(stream) + 2))


@given(chunks)
def test_underruns_add_up(stream: list[tuple[float, float]]) -> None:
    found = play(stream)
    assert 0 <= found.worst_s <= found.total_s + 1e-9
    assert found.total_s <= found.worst_s * max(found.underruns, 1) + 1e-9
    assert found.underruns < len(stream)
    assert (found.underruns == 0) == (found.total_s == 0)


@given(chunks, st.floats(0, 100))
def test_it_counts_from_the_first_chunk(stream: list[tuple[float, float]], shift: float) -> None:
    moved = play([(at + shift, length) for at, length in stream])
    assert moved.total_s == pytest.approx(play(stream).total_s, abs=1e-6)


@given(chunks)
def test_all_at_once_never_stalls(stream: list[tuple[float, float]]) -> None:
    assert play([(1.0, length) for _, length in stream]) == Continuity(0.0, 0.0, 0)


@given(chunks, st.integers(0, 39), st.floats(0.01, 3))
def test_a_later_chunk_never_helps(stream: list[tuple[float, float]], place: int, delay: float) -> None:
    place %= len(stream)
    late = [(at + delay if index >= place and place else at, length) for index, (at, length) in enumerate(stream)]
    assert play(late).total_s >= play(stream).total_s - 1e-9


@given(chunks, st.integers(0, 39))
def test_chunks_without_sound_change_nothing(stream: list[tuple[float, float]], place: int) -> None:
    place %= len(stream)
    padded = [*stream[: place + 1], (stream[place][0], 0.0), *stream[place + 1 :]]
    assert play(padded) == play(stream)


def test_a_fast_stream_with_a_gap_is_not_good() -> None:
    stream = [(0.0, 0.2), (0.5, 10.0)]  # real-time factor 0.05
    found = play(stream)
    assert found == Continuity(pytest.approx(0.3), pytest.approx(0.3), 1)
    assert not found.good
    assert play([(0.0, 0.2), (0.2 + GOOD_UNDERRUN_S / 2, 1.0)]).good
    assert play([]) == Continuity(0.0, 0.0, 0)


def test_streams_that_cannot_be() -> None:
    with pytest.raises(ValueError):
        play([(1.0, 0.1), (0.5, 0.1)])
    with pytest.raises(ValueError):
        play([(1.0, -0.1)])


@given(st.integers(0, 4000), st.integers(1, 4000), st.integers(0, 4000), st.floats(0.02, 1.0))
def test_the_first_audible_sample(before: int, length: int, after: int, level: float) -> None:
    sound = np.concatenate([np.zeros(before), np.full(length, -level), np.zeros(after)]).astype(np.float32)
    assert first_audible(sound) == before


def test_noise_of_a_codec_is_not_audible() -> None:
    assert first_audible(silence(1.0)) is None
    assert first_audible(np.zeros(0, np.float32)) is None


@given(st.floats(0.3, 1.5), st.floats(0, 1.0), st.floats(0.05, 1.0), st.sampled_from([8000, 16_000, 48_000]))
def test_the_last_voiced_sample_is_the_end_of_the_voice(length: float, after: float, level: float, rate: int) -> None:
    spoken = voice(length, rate, level=0.12)
    spoken = spoken / np.abs(spoken).max() * np.float32(level)
    found = last_voiced(np.concatenate([spoken, np.zeros(int(after * rate), np.float32)]), rate)
    assert found is not None
    assert found == last_voiced(spoken, rate), "what follows makes no difference"
    assert len(spoken) - rate // 8 < found < len(spoken)


@given(st.integers(0, 3000), st.floats(0.05, 1.0))
def test_the_last_voiced_sample_moves_with_the_sound(shift: int, level: float) -> None:
    tone = (level * np.sin(np.arange(8000) / 8)).astype(np.float32)
    found = last_voiced(np.concatenate([np.zeros(shift, np.float32), tone]), 16_000)
    assert found is not None
    assert shift + 7840 <= found < shift + 8000


def test_silence_has_no_last_voiced_sample() -> None:
    assert last_voiced(silence(1.0), 16_000) is None
    assert last_voiced(np.zeros(0, np.float32), 16_000) is None


def test_real_time_factor() -> None:
    assert real_time_factor(1.0, 4.0) == 0.25
    assert real_time_factor(1.0, 0.0) is None
