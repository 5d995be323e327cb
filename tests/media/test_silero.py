"""Silero's decision, on speech of a voice that people take for one, and on sounds that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.speech import silence, voice
from voicechat.assemble import AssembledPaths
from voicechat.contract.sound import EARS_RATE, FRAME_SAMPLES
from voicechat.media.detectors import SILERO_FILE, SMART_TURN_FILE
from voicechat.media.resample import resample
from voicechat.media.silero import Silero, SileroStream
from voicechat.media.vad import FrameVad, SpeechVad, Vad

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def silero(models: AssembledPaths) -> Silero:
    return Silero(models.detectors / SILERO_FILE)


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """A question, 16 kHz, without silence around it."""
    hibari = pytest.importorskip("hibari")
    sound = resample(
        np.asarray(hibari.Hibari()("What is the capital of France?"), np.float32), hibari.SAMPLE_RATE, EARS_RATE
    )
    loud = np.flatnonzero(np.abs(sound) > 0.01)
    return sound[loud[0] : loud[-1]]


def coughs() -> np.ndarray:
    """Bursts of noise through the resonances of a throat."""
    burst = RNG.standard_normal(3200)
    spectrum, hertz = np.fft.rfft(burst), np.fft.rfftfreq(3200, 1 / EARS_RATE)
    throat = sum(gain / (1 + ((hertz - f) / w) ** 2) for f, w, gain in ((500, 250, 1), (1400, 400, 0.7)))
    t = np.arange(3200) / EARS_RATE
    burst = np.fft.irfft(spectrum * throat) * np.exp(-t / 0.07)
    burst = (0.5 * burst / np.abs(burst).max()).astype(np.float32)
    return np.concatenate([burst, silence(0.15), burst, silence(0.6)])


def typing() -> np.ndarray:
    sound = silence(3)
    for at in range(1600, 44_000, 2400):
        sound[at : at + 480] += (RNG.standard_normal(480) * np.exp(-np.arange(480) / 96) * 0.2).astype(np.float32)
    return sound


def flags(vad: Vad, sound: np.ndarray, *, strict: bool = False) -> np.ndarray:
    return np.array(
        [
            vad.voiced(sound[i : i + FRAME_SAMPLES], strict=strict)
            for i in range(0, len(sound) - FRAME_SAMPLES + 1, FRAME_SAMPLES)
        ]
    )


@pytest.mark.parametrize("strict", [False, True])
def test_speech_is_found_where_it_is(silero, speech, strict):
    found = flags(SpeechVad(silero), np.concatenate([silence(1), speech, silence(1)]), strict=strict)
    spoken = len(speech) / EARS_RATE
    assert not found[:50].any()
    assert 50 <= np.argmax(found) <= 58, "within 160 ms"
    last = len(found) - np.argmax(found[::-1])
    assert abs(last * 0.02 - 1 - spoken) < 0.1, "and no longer than it was"
    assert found.sum() * 0.02 > 0.7 * spoken


@pytest.mark.parametrize("sound", [coughs(), typing()], ids=["coughs", "typing"])
def test_what_the_gate_lets_through_is_no_speech_yet(silero, sound):
    sound = np.concatenate([silence(1), sound])
    assert flags(FrameVad(), sound).sum() >= 5
    assert flags(SpeechVad(silero), sound).sum() == 0


def test_speech_is_found_in_noise(silero, speech):
    noise = (RNG.standard_normal(len(speech) + 32_000) * 0.008).astype(np.float32)
    noise[16_000:-16_000] += speech
    found = flags(SpeechVad(silero), noise)
    assert found[:50].sum() == 0 and found[-45:].sum() == 0
    assert found.sum() * FRAME_SAMPLES > 0.5 * len(speech)


def test_a_higher_threshold_takes_less_for_speech(silero, speech):
    sound = np.concatenate([silence(1), speech + RNG.standard_normal(len(speech)).astype(np.float32) * 0.05])
    counts = [flags(SpeechVad(silero, threshold), sound).sum() for threshold in (0.05, 0.5, 0.95, 1.0)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[2] and counts[3] <= counts[2]
    with pytest.raises(ValueError, match="threshold"):
        SpeechVad(silero, 1.5)


def test_a_quiet_microphone_costs_nothing_and_is_heard_again(silero, speech, monkeypatch):
    runs = 0
    run = Silero.run

    def counted(self, *arguments):
        nonlocal runs
        runs += 1
        return run(self, *arguments)

    monkeypatch.setattr(Silero, "run", counted)
    vad = SpeechVad(silero)
    flags(vad, np.zeros(EARS_RATE * 20, np.float32))
    assert runs == 0
    assert flags(vad, np.concatenate([speech, silence(4)])).any()
    busy = runs
    flags(vad, np.zeros(EARS_RATE * 20, np.float32))
    assert runs == busy, "it rests again"
    assert flags(vad, speech).sum() * FRAME_SAMPLES > 0.6 * len(speech)


def test_pieces_of_any_length_are_the_same_sound(silero, speech):
    whole, pieces = SileroStream(silero), SileroStream(silero)
    expected = whole.push(speech[: 512 * 20])
    found = None
    for start in range(0, 512 * 20, 320):
        probability = pieces.push(speech[start : start + 320])
        found = found if probability is None else probability
    assert found == pytest.approx(expected, abs=1e-6)
    pieces.reset()
    assert pieces.push(np.zeros(511, np.float32)) is None
    assert pieces.push(np.zeros(1, np.float32)) < 0.1


def test_a_synthetic_vowel_is_judged_at_all(silero):
    """The tests' own voice is no person; what is made of it is between 0 and 1."""
    assert 0 <= SileroStream(silero).push(voice(1.0)) <= 1


def test_other_files_are_refused(tmp_path: Path, models: AssembledPaths):
    with pytest.raises(FileNotFoundError, match="nothing"):
        Silero(tmp_path / "nothing.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ValueError, match="no ONNX model"):
        Silero(tmp_path / "text.onnx")
    with pytest.raises(ValueError, match="input_features"):
        Silero(models.detectors / SMART_TURN_FILE)


def test_while_a_reply_is_heard_a_voice_far_below_the_users_is_somebody_else(silero, speech):
    """Once the user has been heard; then it is forgotten little by little."""

    def later(vad: SpeechVad, level_db: float, quiet_s: float = 1.0) -> int:
        sound = np.concatenate([silence(quiet_s), speech * np.float32(10 ** (level_db / 20)), silence(0.5)])
        return int(flags(vad, sound, strict=True).sum())

    def known() -> SpeechVad:
        vad = SpeechVad(silero)
        assert flags(vad, np.concatenate([silence(1), speech, silence(1)])).sum() > 20
        return vad

    alone = later(SpeechVad(silero), -20)
    assert alone > 20, "nobody is known yet"
    assert later(known(), 0) > 20
    assert later(known(), -6) > 20, "the user, turned away"
    assert later(known(), -24) < 3, "below the user's level: somebody else"
    assert later(known(), -24, quiet_s=40.0) > 20
