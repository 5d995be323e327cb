"""The payload's code, against the distances that are known of BCH (63, 16)."""

from __future__ import annotations

import numpy as np
import pytest

from voicechat.watermark.code import RADIUS, codebook, encode, nearest


def test_words_lie_at_least_24_apart() -> None:
    book = codebook()
    weights = (book < 0).sum(1)  # linear: distances of any two are weights
    assert book.shape == (65536, 64)
    assert np.sort(np.unique(weights))[:2].tolist() == [0, 24]


def test_words_are_linear() -> None:
    assert np.array_equal(encode(0x1234) * encode(0xBEEF), encode(0x1234 ^ 0xBEEF))


def test_any_wrong_signs_within_the_radius_are_mended() -> None:
    rng = np.random.default_rng(1)
    payloads = rng.integers(0, 65536, 200)
    soft = np.array(codebook()[payloads])
    for row in soft:
        row[rng.choice(64, RADIUS, replace=False)] *= -1
    found, best, second = nearest(soft)
    assert np.array_equal(found, payloads)
    assert (best > second).all()


@pytest.mark.parametrize("payload", [-1, 65536])
def test_other_payloads_are_refused(payload: int) -> None:
    with pytest.raises(ValueError, match="16 bits"):
        encode(payload)
