import numpy as np
import pytest

from tests.speech import silence, voice
from voicechat.contract.sound import FRAME_SAMPLES
from voicechat.media import vad as vad_module
from voicechat.media.vad import FrameVad


def flags(sound: np.ndarray, threshold: float = 0.5) -> list[bool]:
    vad = FrameVad(threshold)
    return [vad.voiced(sound[i : i + FRAME_SAMPLES]) for i in range(0, len(sound) - FRAME_SAMPLES + 1, FRAME_SAMPLES)]


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_voice_is_found_where_it_is(threshold):
    found = flags(np.concatenate([silence(1), voice(1.5), silence(1)]), threshold)
    assert not any(found[:50])
    assert sum(found[50:125]) > 65
    assert not any(found[126:]), "no hangover after the last word"


@pytest.mark.parametrize("level", [0.003, 0.01, 0.05])
def test_steady_noise_is_no_speech(level):
    noise = (np.random.default_rng(1).standard_normal(16_000 * 6) * level).astype(np.float32)
    assert sum(flags(noise)) <= 6


def test_voice_is_found_in_noise():
    noise = (np.random.default_rng(1).standard_normal(16_000 * 5) * 0.01).astype(np.float32)
    noise[32_000:56_000] += voice(1.5)
    found = flags(noise)
    assert sum(found[100:175]) > 60
    assert sum(found[:100]) + sum(found[178:]) <= 4


def test_digital_silence_and_whispers_of_the_line_are_silent():
    assert not any(flags(np.zeros(16_000, dtype=np.float32)))
    assert not any(flags(voice(1.0, level=0.0005)))


def test_full_scale_does_not_wrap():
    assert sum(flags(np.concatenate([silence(0.5), np.clip(voice(1.0, level=0.7), -1, 1)]))) > 30


@pytest.mark.parametrize("samples", [0, 160, 321])
def test_wrong_length_is_refused(samples):
    with pytest.raises(ValueError, match="320"):
        FrameVad().voiced(np.zeros(samples, dtype=np.float32))


@pytest.mark.parametrize("threshold", [-0.1, 1.1])
def test_wrong_threshold_is_refused(threshold):
    with pytest.raises(ValueError, match="threshold"):
        FrameVad(threshold)


def test_levels_and_steps_are_those_of_numpy():
    """The short cuts give what the plain formulas give, to the last bit."""
    rng = np.random.default_rng(2)
    for level in (0.0, 1e-4, 0.1, 1.5):
        frame = (rng.standard_normal(FRAME_SAMPLES) * level).astype(np.float32)
        assert vad_module._rms(frame) == float(np.sqrt(np.mean(np.square(frame, dtype=np.float64))))
        expected = np.clip(np.round(frame * 32767.0), -32768, 32767).astype(np.int16)
        assert np.array_equal(vad_module._int16(frame), expected)
