"""A simulated bad network, by what comes out of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.speech import rms, voice
from voicechat.bench.loss import arrivals, client_hears, coded, ears_hear
from voicechat.bench.relay import Path, Weather

CLEAR = Weather()
BAD = Weather(loss=0.05, jitter_ms=40)


@pytest.fixture(scope="module")
def packets() -> list[bytes]:
    """4 s of a voice, ready for loss."""
    return coded(voice(4.0, rate=24_000).astype(np.float32), 20)


@pytest.mark.parametrize("hears", [ears_hear, client_hears])
def test_a_clear_network_changes_nothing_and_a_bad_one_keeps_time(packets, hears):
    clear = hears(packets, Path(CLEAR, 1))
    assert len(clear) == pytest.approx(320 * len(packets), abs=321)
    path = Path(BAD, 1)
    bad = hears(packets, path)
    assert path.lost > 3
    assert len(bad) == pytest.approx(len(clear), rel=0.03)
    assert rms(bad) == pytest.approx(rms(clear), rel=0.15), "what was lost is repaired, not silence"


def test_arrivals_are_in_order_of_time(packets):
    found = arrivals(packets, Path(Weather(loss=0.2, jitter_ms=60, keep_order=False), 3))
    assert found == sorted(found)
    assert 0.7 < len(found) / len(packets) < 0.9
    assert [number for _, number in found] != sorted(number for _, number in found)
