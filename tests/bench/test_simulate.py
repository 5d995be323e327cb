"""A turn on a simulated clock: the real session, shell, detectors and judge, an ASR that knows the words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voicechat.assemble import AssembledPaths
from voicechat.bench.realtime import session_of
from voicechat.bench.realtime_judge import Fault
from voicechat.bench.script import SOUND_RATE, Entry, Expect, Kind, Recording, Speech, framed, voiced_span, with_pauses
from voicechat.bench.simulate import Simulator
from voicechat.bench.simulated import Asr, Memory, ModelTimes
from voicechat.config import Settings
from voicechat.contract.sound import EarsPcm
from voicechat.media.resample import resample

TEXT = "What is the best way to learn the piano?"


class Known(Asr):
    """Hears ``TEXT``, or its beginning if the sound is shorter."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def text(self, sound: EarsPcm) -> str:
        return TEXT if len(sound) / 16_000 > self._seconds else "What is the best way to"


@pytest.fixture(scope="module")
def spoken() -> np.ndarray:
    hibari = pytest.importorskip("hibari")
    sound = np.asarray(hibari.Hibari()("What is the best way, to learn the piano?", seed=1), np.float32)
    return resample(sound, hibari.SAMPLE_RATE, SOUND_RATE)


@pytest.fixture(scope="module")
def simulator(models: AssembledPaths, tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    return Simulator(Settings(), models, Memory(tmp_path_factory.mktemp("heard") / "heard.json"), ModelTimes())


def recording(spoken: np.ndarray, kind: Kind, expect: Expect) -> Recording:
    text = "What is the best way, to learn the piano?"
    sound, spans = with_pauses(spoken, text, [])
    sound, placed = framed(sound, spans)
    entry = Entry("one", kind, expect, Speech(text), text)
    return Recording(entry, sound, placed, "heart")


@pytest.mark.parametrize("transport", ["ws", "webrtc"])
def test_a_question_is_answered_and_the_same_every_time(
    simulator: Simulator, spoken: np.ndarray, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = voiced_span(spoken)
    monkeypatch.setattr(simulator, "_asr", Known((last - first) / SOUND_RATE * 0.8))
    made = recording(spoken, Kind.QUESTION, Expect.ONE_TURN)
    session = session_of("simulated", "semantic_vad", None, at_length=False)
    one, other = (simulator.turn(transport, made, None, session) for _ in range(2))
    assert one.error is None and not one.faults and one.heard == TEXT
    assert 0.2 < one.figures["voice_to_voice_s"] < 1.0
    assert one.figures == other.figures


def test_who_speaks_into_a_reply_stops_it(
    simulator: Simulator, spoken: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "_asr", Known(1.0))
    prompt = recording(spoken, Kind.QUESTION, Expect.ONE_TURN)
    made = recording(spoken, Kind.INTERRUPTION, Expect.INTERRUPTION)
    session = session_of("simulated", "semantic_vad", None, at_length=True)
    verdict = simulator.turn("webrtc", made, prompt, session)
    assert verdict.error is None and not verdict.faults
    assert verdict.figures["barge_in_stop_s"] < 0.4


def test_a_server_that_hears_nothing_misses_the_turn(
    simulator: Simulator, spoken: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge can fail."""
    monkeypatch.setattr(Known, "text", lambda self, sound: "")
    monkeypatch.setattr(simulator, "_asr", Known(0.0))
    made = recording(spoken, Kind.QUESTION, Expect.ONE_TURN)
    verdict = simulator.turn("ws", made, None, session_of("simulated", "semantic_vad", None, at_length=False))
    assert verdict.faults == [Fault.MISSED_TURN]


def test_what_was_found_is_remembered(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "heard.json")
    sound, calls = np.full(320, 0.1, np.float32), []

    def make() -> str:
        calls.append(1)
        return "words"

    assert memory.find("asr", sound, make) == memory.find("asr", sound, make) == "words" and len(calls) == 1
    assert memory.find("asr", 2 * sound, make) == "words" and len(calls) == 2
    memory.save()
    assert Memory(tmp_path / "heard.json").find("asr", sound, make) == "words" and len(calls) == 2
