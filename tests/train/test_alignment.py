"""Which rows of a text a step of sound speaks and sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.models.embedded.alphabet import LEFT, NONE_SYMBOL, RIGHT, SYMBOL_WINDOW, SYMBOLS
from voicechat.models.embedded.talker import ADVANCES, STEP_SAMPLES
from voicechat.train.alignment import pointers, windows

texts = st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=30)


def test_pointers_follow_the_symbols() -> None:
    ends = np.asarray([960, 1560, 2160, 5000, 5600], np.int32)
    np.testing.assert_array_equal(pointers(ends, 6), [0, 1, 3, 3, 3, 4, 4])


def test_pointers_that_would_still_lag_at_the_end_are_none() -> None:
    ends = np.asarray([1000, 1100, 1200, 1300, 1400, 1920], np.int32)
    assert pointers(ends, 2) is None
    np.testing.assert_array_equal(pointers(ends, 4), [0, 2, 4, 5, 5])


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=40))
def test_pointers_never_pass_more_rows_than_a_step_can(lengths: list[int]) -> None:
    ends = np.cumsum(lengths).astype(np.int32)
    steps = -(-int(ends[-1]) // STEP_SAMPLES)
    where = pointers(ends, steps)
    under = []
    for centre in range(STEP_SAMPLES // 2, steps * STEP_SAMPLES, STEP_SAMPLES):
        under.append(next((row for row, end in enumerate(ends) if end > centre), len(ends) - 1))
    if where is None:
        assert np.diff([*under, len(ends) - 1]).max() >= ADVANCES
        return
    assert len(where) == steps + 1 and where[-1] == len(ends) - 1
    assert (where[:-1] <= under).all(), "the pointer may lag, but is never early"
    assert set(np.diff(where).tolist()) <= set(range(ADVANCES))
    if max(np.diff([*under, len(ends) - 1])) < ADVANCES:
        assert where[:-1].tolist() == under


@given(texts, st.data())
def test_windows_are_what_lies_around_the_rows(symbols: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(symbols) - 1), max_size=20))
    seen = windows(np.asarray(symbols, np.uint8), np.asarray(rows, np.int64))
    assert seen.shape == (len(rows), SYMBOL_WINDOW) and seen.dtype == np.uint8
    expected = []
    for row in rows:
        around = []
        for place in range(row - LEFT, row + RIGHT + 1):
            around.append(symbols[place] if 0 <= place < len(symbols) else NONE_SYMBOL)
        expected.append(around)
    assert seen.tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_windows_at_the_ends_of_a_text(dtype: type[np.generic]) -> None:
    none = NONE_SYMBOL
    symbols = np.asarray([0, 11, 12, 13, 14, 15, 16, 0], dtype)
    seen = windows(symbols, np.asarray([0, 1, 7]))
    assert seen.tolist() == [
        [none, none, none, 0, 11, 12, 13, 14, 15],
        [none, none, 0, 11, 12, 13, 14, 15, 16],
        [14, 15, 16, 0, none, none, none, none, none],
    ]
    assert windows(symbols[:1], np.asarray([0])).tolist() == [[none] * 3 + [0] + [none] * 5]


def test_windows_past_the_ends_are_refused() -> None:
    with pytest.raises(IndexError):
        windows(np.zeros(4, np.uint8), np.asarray([4]))
