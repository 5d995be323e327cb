"""The payload's code, against the distances that are known of BCH (63, 16)."""

from __future__ import annotations

import numpy as np
import pytest

from voicechat.watermark.code import RADIUS, encode, nearest, signs_of

BOOK = signs_of(np.arange(65536))


def test_words_lie_at_least_24_apart() -> None:
    book = BOOK
    weights = (book < 0).sum(1)  # linear: distances of any two are weights
    assert book.shape == (65536, 64)
    assert np.sort(np.unique(weights))[:2].tolist() == [0, 24]


def test_words_are_linear() -> None:
    assert np.array_equal(encode(0x1234) * encode(0xBEEF), encode(0x1234 ^ 0xBEEF))


def test_any_wrong_signs_within_the_radius_are_mended() -> None:
    rng = np.random.default_rng(1)
    payloads = rng.integers(0, 65536, 200)
    soft = BOOK[payloads]
    for row in soft:
        row[rng.choice(64, RADIUS, replace=False)] *= -1
    found, best, second = nearest(soft)
    assert np.array_equal(found, payloads)
    assert (best > second).all()


def test_the_nearest_word_and_the_next_are_those_of_all_words() -> None:
    """Against the product with each of the 65,536: of noise, of faint words, and of words turned round."""
    rng = np.random.default_rng(2)
    soft = rng.normal(size=(90, 64)).astype(np.float32)
    soft[30:60] += BOOK[rng.integers(0, 65536, 30)] * 0.7
    soft[60:] -= 2 * BOOK[rng.integers(0, 65536, 30)]
    all_seen = np.sort(soft @ BOOK.T, 1)
    found, best, second = nearest(soft)
    assert np.array_equal(found, (soft @ BOOK.T).argmax(1))
    assert np.allclose(best, all_seen[:, -1], atol=1e-4) and np.allclose(second, all_seen[:, -2], atol=1e-4)


@pytest.mark.parametrize("payload", [-1, 65536])
def test_other_payloads_are_refused(payload: int) -> None:
    with pytest.raises(ValueError, match="16 bits"):
        encode(payload)
