"""The Talker's windows: every row is spoken once, in order, whatever the Talker does."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from voicechat.models.embedded.alphabet import NONE_SYMBOL, RIGHT, SYMBOLS
from voicechat.models.embedded.progress import PAUSE, Progress
from voicechat.models.embedded.talker import symbol_windows

SENTENCE = st.integers(1, 30)
ADVANCES = st.lists(st.integers(0, 2), min_size=1, max_size=600)


def text(lengths: list[int]) -> list[int]:
    """Symbols of sentences of the given lengths: a pause before each, and one at the end."""
    rows: list[int] = []
    for length in lengths:
        rows += [PAUSE, *(1 + (len(rows) + place) % (SYMBOLS - 1) for place in range(length))]
    return [*rows, PAUSE]


def test_a_short_reply_is_one_window() -> None:
    progress = Progress(window_steps=100)
    progress.add_rows(text([10, 10]))
    cuts = [progress.step(1) for _ in range(progress.rows - 1)]
    assert not any(cuts)
    assert progress.at_end
    assert progress.base == 0


def test_a_window_ends_at_the_next_sentence_once_it_is_long_enough() -> None:
    progress = Progress(window_steps=15)
    progress.add_rows(text([10, 10, 10]))
    steps = 0
    while not progress.step(1):
        steps += 1
    assert progress.base == progress.pointer == 22, "the pause before the third sentence is row 22"
    assert steps == 22, "its own steps were spoken in the first window"
    assert not progress.at_end


def test_a_jump_over_the_pause_begins_there_too() -> None:
    progress = Progress(window_steps=2)
    progress.add_rows(text([2, 4]))
    assert [progress.step(2), progress.step(2)] == [False, True]
    assert progress.base == 3


def test_the_last_pause_begins_no_window() -> None:
    progress = Progress(window_steps=1)
    progress.add_rows(text([3]))
    assert not any(progress.step(1) for _ in range(progress.rows))


def test_a_stuck_talker_is_set_on_the_next_row() -> None:
    progress = Progress(stall_steps=5)
    progress.add_rows(text([3]))
    progress.step(1)
    assert [progress.step(0) for _ in range(5)] == [False] * 4 + [True]
    assert progress.base == progress.pointer == 2


def test_on_the_last_row_nothing_is_left_to_skip_to() -> None:
    progress = Progress(stall_steps=2)
    progress.add_rows(text([1]))
    progress.step(2)
    assert not any(progress.step(0) for _ in range(10))
    assert not progress.skip()


@given(st.lists(SENTENCE, min_size=1, max_size=8), ADVANCES, st.integers(1, 40), st.integers(1, 10))
def test_the_pointer_never_goes_back_and_no_row_is_lost(
    lengths: list[int], advances: list[int], window: int, stall: int
) -> None:
    progress = Progress(window_steps=window, stall_steps=stall)
    rows = text(lengths)
    progress.add_rows(rows)
    for advance in advances:
        before = progress.pointer
        if progress.step(advance):
            assert progress.base == progress.pointer < progress.rows
            skipped = progress.pointer == before + 1 and not advance
            assert skipped or rows[progress.base] == PAUSE, (
                "a window begins at a pause, or on the row after a stuck one"
            )
            assert before <= progress.base <= before + max(advance, 1), "and leaves out no row"
        else:
            assert progress.pointer == before + advance


@given(st.lists(SENTENCE, min_size=2, max_size=8), ADVANCES, st.integers(1, 40), st.lists(st.booleans(), max_size=40))
def test_dropped_rows_change_nothing_but_the_count(
    lengths: list[int], advances: list[int], window: int, drops: list[bool]
) -> None:
    whole, short = Progress(window, 10), Progress(window, 10)
    for progress in (whole, short):
        progress.add_rows(text(lengths))
    wanted = iter(drops)
    for advance in advances:
        assert whole.step(advance) == short.step(advance)
        if short.base and next(wanted, False):
            base = short.base
            assert short.drop() == base
            assert short.base == 0
        assert short.dropped + short.pointer == whole.pointer
        assert short.dropped + short.base == whole.base
        assert short.dropped + short.rows == whole.rows
        assert (short.ahead, short.at_end) == (whole.ahead, whole.at_end)
        assert short.symbols() == whole.symbols()


@given(
    st.lists(SENTENCE, min_size=1, max_size=8),
    ADVANCES,
    st.integers(1, 20),
    st.lists(st.booleans(), min_size=1),
    st.lists(st.integers(0, 20), min_size=1),
)
def test_the_symbols_are_those_that_the_talker_sees(
    lengths: list[int], advances: list[int], window: int, drops: list[bool], ahead: list[int]
) -> None:
    """The text comes no later than the engine's gate wants it, and rows are forgotten now and then."""
    rows, progress, come, wanted = text(lengths), Progress(window, 10), 0, cycle(drops)
    for step, advance in enumerate(advances):
        base, pointer = progress.dropped + progress.base, progress.dropped + progress.pointer
        there = max(come, min(len(rows), pointer + RIGHT + 1 + ahead[step % len(ahead)]))
        progress.add_rows(rows[come:there])
        come = there
        behind = [NONE_SYMBOL] * max(0, pointer + 1 - len(rows))
        every = symbol_windows(torch.tensor(rows[base:] + behind))
        assert list(progress.symbols()) == every[pointer - base].tolist()
        progress.step(advance)
        if progress.base and next(wanted):
            progress.drop()


def test_a_new_window_sees_nothing_before_itself() -> None:
    progress = Progress(window_steps=2)
    rows = text([4, 9])
    progress.add_rows(rows)
    progress.step(2)
    none = [NONE_SYMBOL] * 3
    assert list(progress.symbols()) == [none[0], *rows[:8]]
    progress.step(2)
    assert progress.step(2)
    assert list(progress.symbols()) == [*none, *rows[5:11]]
    assert progress.drop() == 5
    assert list(progress.symbols()) == [*none, *rows[5:11]]
    progress.step(1)
    assert list(progress.symbols()) == [*none[1:], *rows[5:12]]


def test_a_symbol_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="range"):
        Progress().add_rows([3, 256])
