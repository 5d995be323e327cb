import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.contract.sound import FRAME_MS, FRAME_SAMPLES
from voicechat.realtime.policy import SegmenterSettings
from voicechat.realtime.segmenter import (
    EndReason,
    Segmenter,
    SpeechDismissed,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
    SpeechSuspected,
    TurnDiscarded,
    TurnEnded,
)


def frame(number: int) -> np.ndarray:
    """A frame that can be recognised."""
    return np.full(FRAME_SAMPLES, number, dtype=np.float32)


def run(flags, detector=None):
    """All effects, each with the number of frames that had been pushed by then."""
    detector = detector or Segmenter()
    return [(i + 1, e) for i, flag in enumerate(flags) for e in detector.push(frame(i), flag)]


def numbers(audio: np.ndarray) -> list[int]:
    frames = audio.reshape(-1, FRAME_SAMPLES)
    assert (frames == frames[:, :1]).all()
    return [int(n) for n in frames[:, 0]]


def talk(*runs: int) -> list[bool]:
    """Alternating silence and voice, in frames; silence first."""
    return [bool(i % 2) for i, n in enumerate(runs) for _ in range(n)]


def test_one_turn():
    effects = run(talk(50, 40, 60))
    assert [type(e) for _, e in effects] == [SpeechStarted, SpeechPaused, TurnEnded]
    (started_at, started), (paused_at, paused), (ended_at, ended) = effects
    assert started_at == 53, "three voiced frames open the turn"
    assert started.start_ms == (50 - 15) * FRAME_MS, "300 ms of prefix"
    assert paused_at == 90 + 8
    assert ended_at == 90 + 25, "500 ms of silence end it"
    assert numbers(ended.audio) == list(range(35, 98))
    assert np.array_equal(paused.audio, ended.audio), "the early guess hears what the turn will hold"
    assert (ended.start_ms, ended.end_ms, ended.silence_ms) == (700, 1800, 500)
    assert ended.reason is EndReason.SILENCE
    assert ended.audio.dtype == np.float32


def test_speaker_goes_on_after_a_pause():
    effects = run(talk(20, 20, 15, 20, 30))
    assert [type(e) for _, e in effects] == [SpeechStarted, SpeechPaused, SpeechResumed, SpeechPaused, TurnEnded]
    assert effects[2][0] == 57, "two voiced frames are going on"
    assert numbers(effects[-1][1].audio) == list(range(5, 83))


def test_a_click_in_the_pause_does_not_prolong_it():
    flags = talk(20, 20, 30)
    flags[40 + 12] = True
    effects = run(flags)
    assert [type(e) for _, e in effects] == [SpeechStarted, SpeechPaused, TurnEnded]
    assert effects[-1][0] == 65


def test_a_word_that_begins_at_the_last_moment_is_not_cut():
    effects = run(talk(20, 20, 24, 10, 40))
    assert [type(e) for _, e in effects] == [SpeechStarted, SpeechPaused, SpeechResumed, SpeechPaused, TurnEnded]


def test_too_little_voice_may_become_a_turn():
    effects = run(talk(20, 4, 15, 4, 40))
    assert [type(e) for _, e in effects] == [SpeechStarted, SpeechPaused, TurnEnded]


def test_too_little_voice_is_discarded():
    effects = run(talk(20, 4, 40))
    assert [type(e) for _, e in effects] == [SpeechStarted, TurnDiscarded], "not worth a guess"
    assert effects[-1][1].end_ms == 24 * FRAME_MS


def test_two_voiced_frames_are_not_a_turn():
    assert run(talk(20, 2, 40, 2, 40)) == []


def test_long_turn_is_cut_and_the_next_begins():
    detector = Segmenter(SegmenterSettings(max_turn_ms=2000))
    effects = run(talk(20, 160, 30), detector)
    ended = [e for _, e in effects if isinstance(e, TurnEnded)]
    assert [e.reason for e in ended] == [EndReason.TOO_LONG, EndReason.SILENCE]
    assert len(ended[0].audio) == 2000 // FRAME_MS * FRAME_SAMPLES
    assert numbers(ended[0].audio)[-1] + 1 == numbers(ended[1].audio)[0], "nothing is lost between the two"


def test_a_cough_does_not_open_a_turn_while_the_other_side_speaks():
    detector = Segmenter()
    detector.strict = True
    effects = run(talk(20, 8, 40), detector)
    assert effects == [(23, SpeechSuspected()), (48, SpeechDismissed())], "suspected at once, dismissed 400 ms after it"
    effects = run(talk(0, 30), detector)
    assert [(at, type(e)) for at, e in effects] == [(3, SpeechSuspected), (12, SpeechStarted)]


def test_a_short_word_before_an_interruption_is_not_dismissed():
    """As in "Wait, what about the other one?": the reply that waits does not go on between the two."""
    detector = Segmenter()
    detector.strict = True
    effects = run(talk(20, 6, 18, 30), detector)
    assert [type(e) for _, e in effects] == [SpeechSuspected, SpeechStarted]


def test_strict_onset_keeps_the_words_it_waited_for():
    detector = Segmenter()
    detector.strict = True
    effects = run(talk(50, 30, 30), detector)
    assert numbers(effects[-1][1].audio)[0] == 35


def test_time_without_sound_ends_a_turn():
    detector = Segmenter()
    run(talk(10, 20), detector)
    effects = detector.tick(30)
    assert [type(e) for e in effects] == [SpeechPaused, TurnEnded]


def test_clear_forgets():
    detector = Segmenter()
    assert detector.clear() == []
    run(talk(10, 20), detector)
    assert detector.open
    assert [type(e) for e in detector.clear()] == [TurnDiscarded]
    assert not detector.open
    assert run(talk(1, 2), detector) == [], "frames from before do not count"


def test_silence_shorter_than_the_pause():
    detector = Segmenter(SegmenterSettings(silence_ms=100))
    effects = run(talk(10, 20, 30), detector)
    assert [type(e) for _, e in effects] == [SpeechStarted, TurnEnded]
    assert effects[-1][0] == 35


def test_settings_may_change_in_a_turn():
    detector = Segmenter()
    run(talk(10, 20), detector)
    detector.settings = dataclasses.replace(detector.settings, silence_ms=300)
    effects = run(talk(30), detector)
    assert [(at, type(e)) for at, e in effects] == [(8, SpeechPaused), (15, TurnEnded)]


@pytest.mark.parametrize(
    "wrong", [{"silence_ms": 0}, {"prefix_ms": -1}, {"max_turn_ms": 10}, {"onset_ms": 200, "onset_window_ms": 100}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"ms|onset"):
        SegmenterSettings(**wrong)


def test_wrong_frame_is_refused():
    with pytest.raises(ValueError, match="320"):
        Segmenter().push(np.zeros(160, dtype=np.float32), True)


runs = st.lists(st.integers(0, 45), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(
    runs, st.booleans(), st.sampled_from([None, SegmenterSettings(max_turn_ms=1500), SegmenterSettings(silence_ms=160)])
)
def test_properties(lengths, strict, turn_settings):
    detector = Segmenter(turn_settings)
    detector.strict = strict
    config = detector.settings
    flags = talk(*lengths)
    state = "idle"
    last_end = 0
    for at, effect in run(flags, detector):
        match effect:
            case SpeechStarted(start_ms):
                assert state == "idle"
                assert last_end * FRAME_MS <= start_ms < at * FRAME_MS
                state = "speaking"
            case SpeechPaused(audio):
                assert state == "speaking"
                paused, state = audio, "paused"
            case SpeechResumed():
                assert state == "paused"
                state = "speaking"
            case TurnDiscarded():
                assert state in ("speaking", "paused")
                state = "idle"
            case TurnEnded(audio, start_ms, end_ms, silence_ms, reason):
                assert state in ("speaking", "paused")
                heard = numbers(audio)
                assert heard == list(range(heard[0], heard[0] + len(heard))), "sound is whole and in order"
                assert heard[0] * FRAME_MS == start_ms
                assert heard[0] >= last_end, "no sound belongs to two turns"
                assert len(heard) * FRAME_MS <= config.max_turn_ms
                assert flags[end_ms // FRAME_MS - 1], "the end is a voiced frame's"
                if reason is EndReason.SILENCE:
                    assert silence_ms >= config.silence_ms
                    assert not flags[at - 1]
                if state == "paused" and reason is EndReason.SILENCE:
                    assert np.array_equal(paused, audio)
                last_end, state = heard[-1] + 1, "idle"
    assert detector.open == (state != "idle")
    closing = detector.tick(200)
    assert not detector.open
    assert len(closing) <= 2


@settings(max_examples=100, deadline=None)
@given(st.integers(6, 60), st.integers(0, 60), st.integers(6, 60))
def test_gap_decides_between_one_and_two_turns(first, gap, second):
    effects = [type(e) for _, e in run(talk(20, first, gap, second, 40))]
    expected = 1 if gap < 25 else 2
    assert effects.count(TurnEnded) == expected
    assert (SpeechResumed in effects) == (8 <= gap < 25)


def test_what_was_suspected_becomes_a_turn():
    detector = Segmenter()
    detector.strict = True
    effects = run(talk(20, 20), detector)
    assert [(at, type(e)) for at, e in effects] == [(23, SpeechSuspected), (32, SpeechStarted)]
    assert not detector.suspecting


def test_a_suspicion_does_not_last_for_ever():
    detector = Segmenter(SegmenterSettings(strict_onset_ms=400))
    detector.strict = True
    effects = run([False] * 20 + [True, True, True, False, False, False] * 100, detector)
    assert effects == [(23, SpeechSuspected()), (63, SpeechDismissed())], "and does not come back until it is quiet"
    again = [e for flag in talk(20, 4, 20) for e in detector.push(frame(0), flag)]
    assert again == [SpeechSuspected(), SpeechDismissed()]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 12)), max_size=40))
def test_every_suspicion_ends(runs):
    detector, open_ = Segmenter(), False
    for strict, voiced, count in runs:
        detector.strict = strict
        for effect in run([voiced] * count, detector):
            match effect[1]:
                case SpeechSuspected():
                    assert not open_ and strict
                    open_ = True
                case SpeechDismissed():
                    assert open_
                    open_ = False
                case SpeechStarted():
                    open_ = False
        assert open_ == detector.suspecting
    assert (SpeechDismissed() in detector.clear()) == open_
