"""Sound on the wire: levels and lengths survive, whatever the format and the pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.speech import rms
from voicechat.contract.sound import EARS_RATE, PCM_RATE
from voicechat.media import g711
from voicechat.media.wire import WireDecoder, WireEncoder, decode_whole

FORMATS = ("audio/pcm", "audio/pcmu", "audio/pcma")


def tone(hertz: float, seconds: float, rate: int) -> np.ndarray:
    return np.rint(8000 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.int16)


def peak(samples: np.ndarray, rate: int) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples * np.hanning(len(samples))))) * rate / len(samples))


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_g711_codes_are_their_own_nearest(law):
    codes = bytes(range(256))
    values = g711.decode(codes, law)
    back = g711.encode(values, law)
    assert np.array_equal(g711.decode(back, law), values)


def test_g711_known_values():
    # from ITU-T G.711: the loudest codes, and silence
    assert g711.decode(b"\x80\x00\xff", "pcmu").tolist() == [32124, -32124, 0]
    assert g711.decode(b"\xaa\x2a\xd5", "pcma").tolist() == [32256, -32256, 8]
    assert g711.encode(np.array([0, 32767, -32768], np.int16), "pcmu")[1:] == b"\x80\x00"


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_g711_keeps_a_voice(law):
    pcm = tone(300, 1, 8000)
    back = g711.decode(g711.encode(pcm, law), law)
    assert rms(back - pcm.astype(np.float64)) < 0.02 * rms(pcm)


@pytest.mark.parametrize("wire_format", FORMATS)
@given(cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=20))
@settings(deadline=None)
def test_pieces_do_not_matter(wire_format, cuts):
    data = WireEncoder(wire_format).push(tone(300, 0.5, PCM_RATE))
    whole = WireDecoder(wire_format).push(data)
    decoder, parts, position = WireDecoder(wire_format), [], 0
    for cut in [*cuts, len(data)]:
        parts.append(decoder.push(data[position : position + cut]))
        position += cut
    assert np.array_equal(np.concatenate(parts)[: len(whole)], whole[: sum(map(len, parts))])


@pytest.mark.parametrize("wire_format", FORMATS)
def test_level_pitch_and_length(wire_format):
    pcm = tone(440, 1.0, PCM_RATE)
    encoder = WireEncoder(wire_format)
    data = encoder.push(pcm[:10_000]) + encoder.push(pcm[10_000:]) + encoder.flush()
    heard = decode_whole(data, wire_format, EARS_RATE)
    assert len(heard) == pytest.approx(EARS_RATE, abs=4)
    assert rms(heard) == pytest.approx(rms(pcm / 32768), rel=0.03)
    assert peak(heard, EARS_RATE) == pytest.approx(440, abs=2)
