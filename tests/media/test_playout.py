import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.media.playout import FADE_SAMPLES, FRAME_SAMPLES, Playout, PlayoutClock


def ramp(samples: int, start: int = 1) -> np.ndarray:
    return np.arange(start, start + samples, dtype=np.int16)


def test_silent_until_something_is_played():
    playout = Playout()
    frame = playout.next_frame()
    assert frame.pcm.shape == (FRAME_SAMPLES,)
    assert frame.pcm.dtype == np.int16
    assert not frame.pcm.any()
    assert (frame.started, frame.drained, frame.underrun) == (False, False, False)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2000), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_every_sample_is_played_once_and_in_order(sizes, ticks):
    playout = Playout()
    playout.begin()
    total, heard, frames = 0, [], []
    for index, size in enumerate(sizes):
        playout.push(ramp(size, total + 1))
        total += size
        for _ in range(ticks[index] if index < len(ticks) else 0):
            before = playout.played
            frames.append(playout.next_frame())
            heard.append(frames[-1].pcm[: playout.played - before])
            assert not frames[-1].drained
    playout.finish()
    for _ in range(total // FRAME_SAMPLES + 2):
        before = playout.played
        frames.append(playout.next_frame())
        heard.append(frames[-1].pcm[: playout.played - before])
    assert np.array_equal(np.concatenate(heard), ramp(total))
    assert playout.played == playout.pushed == total
    assert playout.queued == 0
    assert sum(f.started for f in frames) == (1 if total else 0)
    assert sum(f.drained for f in frames) == 1
    assert not playout.active


def test_drained_comes_with_the_last_sample():
    playout = Playout()
    playout.begin()
    playout.push(ramp(FRAME_SAMPLES + 1))
    playout.finish()
    first, second = playout.next_frame(), playout.next_frame()
    assert (first.started, first.drained) == (True, False)
    assert (second.started, second.drained) == (False, True)
    assert np.count_nonzero(second.pcm) == 1


def test_drained_if_the_end_is_known_only_later():
    playout = Playout()
    playout.begin()
    playout.push(ramp(FRAME_SAMPLES))
    assert not playout.next_frame().drained
    playout.finish()
    assert playout.next_frame().drained
    assert not playout.next_frame().drained


def test_underruns_are_counted():
    playout = Playout()
    playout.begin()
    assert not playout.next_frame().underrun, "waiting for the first sound is none"
    playout.push(ramp(FRAME_SAMPLES))
    assert not playout.next_frame().underrun
    assert [playout.next_frame().underrun for _ in range(3)] == [True] * 3
    playout.push(ramp(FRAME_SAMPLES))
    assert not playout.next_frame().underrun
    assert playout.next_frame().underrun
    playout.finish()
    assert playout.next_frame().drained
    assert (playout.underruns, playout.underrun_frames) == (2, 4)


def test_clear_stops_at_once_without_a_click():
    playout = Playout()
    playout.begin()
    playout.push(np.full(10 * FRAME_SAMPLES, 10_000, dtype=np.int16))
    playout.next_frame()
    assert playout.clear() == playout.played == FRAME_SAMPLES
    last = playout.next_frame().pcm.astype(int)
    assert np.abs(np.diff(last[: FADE_SAMPLES + 1])).max() < 200
    assert not last[FADE_SAMPLES:].any()
    frame = playout.next_frame()
    assert not frame.pcm.any()
    assert not frame.drained
    assert not playout.active
    assert playout.queued == 0


def test_a_new_stream_drops_the_old_one():
    playout = Playout()
    playout.begin()
    playout.push(np.full(5 * FRAME_SAMPLES, 7, dtype=np.int16))
    playout.begin()
    playout.push(np.full(FRAME_SAMPLES, 9, dtype=np.int16))
    playout.finish()
    frame = playout.next_frame()
    assert set(frame.pcm) == {9}
    assert frame.started
    assert frame.drained


def test_sound_outside_a_stream_is_refused():
    playout = Playout()
    with pytest.raises(RuntimeError):
        playout.push(ramp(10))
    playout.begin()
    playout.finish()
    with pytest.raises(RuntimeError):
        playout.push(ramp(10))
    playout.clear()
    with pytest.raises(RuntimeError):
        playout.push(ramp(10))


def test_clock_is_absolute():
    clock = PlayoutClock()
    now = 100.0
    for tick in range(500):
        now += clock.wait(now) + 0.004  # each sleep oversleeps
        assert now == pytest.approx(100.0 + tick * 0.02 + 0.004)
    assert clock.slips == 0


def test_clock_catches_up_after_a_short_stall():
    clock = PlayoutClock()
    clock.wait(0.0)
    assert [clock.wait(0.1) for _ in range(5)] == [0.0] * 5
    assert clock.wait(0.1) == pytest.approx(0.02)


def test_clock_moves_after_a_long_stall():
    clock = PlayoutClock(max_lag=0.2)
    clock.wait(0.0)
    assert clock.wait(5.0) == 0.0
    assert clock.wait(5.0) == pytest.approx(0.02)
    assert clock.slips == 1
    assert clock.ticks == 3


def test_held_sound_goes_on_from_the_very_sample():
    playout = Playout()
    playout.begin()
    playout.push(np.full(10 * FRAME_SAMPLES, 1000, dtype=np.int16))
    playout.finish()
    playout.next_frame()
    playout.hold()
    frames = [playout.next_frame().pcm for _ in range(3)]
    assert frames[0][0] == 1000 and not frames[0][FADE_SAMPLES:].any(), "fades out"
    assert not frames[1].any() and not frames[2].any()
    assert playout.played == FRAME_SAMPLES and playout.held
    playout.release()
    resumed = playout.next_frame().pcm
    assert resumed[0] == 0 and (resumed[FADE_SAMPLES:] == 1000).all(), "fades in"
    assert playout.played == 2 * FRAME_SAMPLES
    rest = [playout.next_frame() for _ in range(8)]
    assert rest[-1].drained and all((frame.pcm == 1000).all() for frame in rest)


def test_held_sound_can_be_cleared():
    playout = Playout()
    playout.begin()
    playout.push(np.full(10 * FRAME_SAMPLES, 1000, dtype=np.int16))
    playout.next_frame()
    playout.hold()
    playout.next_frame()
    assert playout.clear() == FRAME_SAMPLES
    assert not playout.next_frame().pcm.any() and not playout.held
    playout.hold()
    assert not playout.held, "there is nothing to hold"
