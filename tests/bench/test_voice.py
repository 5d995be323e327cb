"""``voicechat bench voice`` as a user runs it, over a cascade without models, with a transcriber that counts words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.served_double import served
from tests.cascade_double import DoubleCascade, tone
from voicechat import cli
from voicechat.bench import voice_judges, voice_sounds
from voicechat.bench.outcome import BenchError
from voicechat.bench.voice_images import spectrogram
from voicechat.bench.voice_report import found_failures, voice_report
from voicechat.bench.voice_sounds import Kept, Text, load_texts
from voicechat.contract.errors import StageFailed
from voicechat.train.transcriber import phrases

WORD_S = 0.3
TEXTS = [{"key": f"t/{count}", "text": " ".join(["word"] * count)} for count in (4, 6, 8)]


class CountingEars:
    """Hears a word every 0.3 s."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, pcm: np.ndarray, low: np.ndarray) -> str:
        return " ".join(["word"] * round(len(pcm) / 24_000 / WORD_S))

    by_phrases = __call__


class TonesAsTeachers:
    """Speaks as the double does, but forgets the last word; taught anna only."""

    def __init__(self, folder: Path, wanted: list[str]) -> None:
        self.wanted = wanted

    def __contains__(self, voice: str) -> bool:
        return voice == "anna"

    def prepare(self) -> None:
        """Nothing has to be."""

    def speak(self, voice: str, text: str, seed: int) -> np.ndarray:
        return tone(WORD_S * (len(text.split()) - 1))


@pytest.fixture
def cascade() -> DoubleCascade:
    return DoubleCascade(word_delay=0.001, word_seconds=WORD_S)


@pytest.fixture
def server(cascade: DoubleCascade) -> Iterator[str]:
    with served(cascade) as base:
        yield base


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(voice_judges, "Transcriber", CountingEars)
    monkeypatch.setattr(voice_sounds, "Teachers", TonesAsTeachers)
    monkeypatch.setattr(voice_judges.Panel, "_installed", lambda self, name, *modules: False)
    monkeypatch.setenv("VOICECHAT_HOME", str(tmp_path / "home"))
    (tmp_path / "ears").mkdir()
    (tmp_path / "ears" / "model.bin").touch()
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))


@pytest.fixture
def words(server: str, tmp_path: Path) -> list[str]:
    """The command line that all runs share."""
    paths = [
        "--texts",
        str(tmp_path / "texts.json"),
        "--ears",
        str(tmp_path / "ears"),
        "--work",
        str(tmp_path / "work"),
    ]
    return ["bench", "voice", "--server", server, *paths]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = cli.main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_run_and_its_going_on(
    words: list[str], cascade: DoubleCascade, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, report = run(capsys, *words, "--count", "2", "--images", str(tmp_path / "images"))
    assert code == 0
    assert report["schema"] == "voicechat-bench-voice/1"
    assert report["model"] == "double"
    assert report["settings"]["count"] == 2
    assert report["notes"] == ["ben: no teacher is known; give --teacher ben=…"]
    anna, ben = report["voices"]["anna"], report["voices"]["ben"]
    assert list(anna["systems"]) == ["teacher", "latency", "quality"]
    assert list(ben["systems"]) == ["latency", "quality"]
    assert anna["systems"]["teacher"]["wer"]["tiny.en"]["percent"] == pytest.approx(100 * 2 / 10)
    ours = anna["systems"]["latency"]
    assert ours["wer"]["tiny.en"] == {"percent": 0, "low": 0, "high": 0, "words": 10}
    assert ours["length"] == pytest.approx({"mean": (4 / 3 + 6 / 5) / 2, "least": 1.2, "most": 4 / 3}, rel=1e-3)
    assert ours["failures"] == {"loop": 0, "skip": 0, "early end": 0, "long": 0, "any": 0, "share": 0, "doubts": 0}
    assert ours["rate"] == pytest.approx(4 / WORD_S, rel=0.02)  # w, er, r, d
    assert ours["seconds"] == 3.0
    assert (ours["dnsmos"], ours["speaker"]) == (None, None)
    assert anna["differences"]["latency - teacher"]["wer"]["tiny.en"]["points"] == pytest.approx(-20)
    assert anna["differences"]["latency - quality"]["wer"]["tiny.en"]["points"] == 0
    assert list(ben["differences"]) == ["latency - quality"]
    assert all(goal["met"] for goal in anna["goals"].values())
    assert len(anna["images"]) == 2
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in anna["images"])
    asked = [(request.voice, request.text, request.latency_first) for request in cascade.speeches]
    assert len(asked) == len(set(asked)) == 2 * 2 * 2
    assert len({request.seed for request in cascade.speeches}) == 2

    code, again = run(capsys, *words, "--count", "2")
    assert (code, again["voices"]["ben"]) == (0, ben | {"images": []})
    assert len(cascade.speeches) == 8, "nothing is spoken twice"
    run(capsys, *words, "--count", "3", "--voices", "ben", "--modes", "quality")
    assert len(cascade.speeches) == 9


def test_the_table(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--voices", "anna"]) == 0
    told = capsys.readouterr()
    assert "WER tiny.en, %" in told.out
    assert "met    latency: WER over the teacher's, points" in told.out
    assert "anna: 9 of 9 sounds" in told.err


def test_what_can_not_be_spoken_is_told_and_tried_again(
    words: list[str], cascade: DoubleCascade, capsys: pytest.CaptureFixture[str]
) -> None:
    cascade.fail_respond = StageFailed("talker", "The talker died.")
    code, report = run(capsys, *words, "--voices", "anna", "--modes", "latency")
    assert code == 1
    assert len(report["voices"]["anna"]["failed"]) == 3
    assert "The talker died." in report["voices"]["anna"]["failed"][0]["error"]
    assert list(report["voices"]["anna"]["systems"]) == ["teacher"]
    cascade.fail_respond = None
    code, report = run(capsys, *words, "--voices", "anna", "--modes", "latency")
    assert code == 0
    assert report["voices"]["anna"]["systems"]["latency"]["texts"] == 3


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--voices", "carl"], "no voice carl"),
        (["--texts", "/nowhere.json"], "no list of texts"),
        (["--ears", "/nowhere"], "no faster-whisper model"),
        (["--strong", "/nowhere"], "no folder"),
    ],
)
def test_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str], more: list[str], says: str) -> None:
    assert cli.main([*words, *more]) == 2
    assert says in capsys.readouterr().err


def test_texts_must_have_keys_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    for wrong in ("{", "[]", '[{"key": "a"}]', '[{"key": "a", "text": "x"}, {"key": "a", "text": "y"}]', "5"):
        path.write_text(wrong)
        with pytest.raises(BenchError):
            load_texts(path, 5)


def test_what_is_kept_is_kept_whole(tmp_path: Path) -> None:
    kept, text = Kept(tmp_path), Text("a/b:c", "some words")
    pcm = tone(0.5)
    assert kept.read("anna", "quality", text) is None
    kept.write("anna", "quality", text, {"samples": len(pcm)}, pcm)
    np.testing.assert_array_equal(kept.sound("anna", "quality", text), pcm)
    assert (kept.read("anna", "quality", text) or {})["samples"] == len(pcm)
    assert kept.read("anna", "quality", Text("a/b:c", "other words")) is None
    assert kept.read("anna", "quality", Text("a_b_c", "some words")) is None
    kept.write("anna", "latency", text, {"samples": 0}, pcm[:0])
    assert kept.sound("anna", "latency", text).size == 0


def test_phrases_are_cut_in_the_pauses() -> None:
    quiet = np.zeros(24_000 * 3 // 10, np.int16)
    sound = np.concatenate((tone(0.5), quiet, tone(0.7), quiet[: 24_000 // 10], tone(0.4), quiet))
    cut = phrases(sound)
    assert [round(len(piece) / 24_000, 2) for piece in cut] == [0.65, 1.5]
    np.testing.assert_array_equal(np.concatenate(cut), sound[: sum(map(len, cut))])
    assert phrases(sound[:0]) == []
    assert len(phrases(tone(0.5))) == 1


def test_a_failure_is_one_only_if_it_is_heard_twice() -> None:
    text = "apple bread cheese dates eggs figs grapes"
    heard = {"text": text, "heard:tiny.en": "apple bread cheese", "samples": 24_000}
    assert found_failures(heard, None, "tiny.en") == ("early end",)
    assert found_failures({**heard, "phrases:tiny.en": text}, None, "tiny.en") == ()
    assert found_failures({**heard, "phrases:tiny.en": "apple bread figs grapes"}, None, "tiny.en") == ("skip",)
    assert found_failures({**heard, "heard:tiny.en": text, "phrases:tiny.en": "apple"}, None, "tiny.en") == ()
    assert found_failures(heard, {"samples": 15_000}, "tiny.en") == ("early end", "long")
    assert found_failures({**heard, "phrases:tiny.en": text}, {"samples": 15_000}, "tiny.en") == ("long",)


def test_doubts_are_heard_again_by_phrases(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ears that leave all words out but one, unless they are given phrases."""
    whole, asked = CountingEars.__call__, []

    def again(self: CountingEars, pcm: np.ndarray, low: np.ndarray) -> str:
        asked.append(len(pcm))
        return whole(self, pcm, low)

    monkeypatch.setattr(CountingEars, "by_phrases", again)
    monkeypatch.setattr(CountingEars, "__call__", lambda self, pcm, low: "word")
    _, report = run(capsys, *words, "--voices", "ben", "--modes", "quality")
    ours = report["voices"]["ben"]["systems"]["quality"]["failures"]
    assert len(asked) == ours["doubts"] > 0 and ours["any"] == 0
    run(capsys, *words, "--voices", "ben", "--modes", "quality")
    assert len(asked) == ours["doubts"], "nothing is asked twice"


def test_figures_by_judges() -> None:
    """Means of DNSMOS and likeness, and the goals, from words that judges might have said."""

    def entry(text: str, heard: str, ovrl: float, speaker: list[float]) -> dict[str, Any]:
        scores = {"ovrl": ovrl, "sig": 3.5, "bak": 4.0, "p808": 3.6}
        return {
            "text": text, "heard:tiny.en": heard, "samples": 48_000, "spoken_s": 2.0, "pitch": [120.0, 6.0],
            "dnsmos": scores, "speaker": speaker,
        }  # fmt: skip

    texts = [" ".join(["apple", "bread", "cheese", "dates", "eggs", name]) for name in ("figs", "grapes")]
    teacher = {text: entry(text, text, 3.4, [1.0, 0.0]) for text in texts}
    latency = {text: entry(text, text[:12], 3.2, [0.6, 0.8]) for text in texts}
    report = voice_report({"teacher": teacher, "latency": latency}, ["tiny.en"])
    ours = report["systems"]["latency"]
    assert ours["dnsmos"]["ovrl"] == pytest.approx(3.2)
    assert ours["speaker"] == pytest.approx(0.6)
    assert report["systems"]["teacher"]["speaker"] == pytest.approx(1.0)
    assert ours["failures"]["early end"] == ours["failures"]["any"] == 2
    assert ours["failures"]["share"] == 1.0
    assert {name: goal["met"] for name, goal in report["goals"].items()} == {
        "latency: WER over the teacher's, points": False,
        "latency: DNSMOS under the teacher's": False,
        "latency: share of failures": False,
    }
    assert [example["kinds"] for example in report["examples"]] == [["early end"]] * 2


def test_a_spectrogram_shows_the_tone() -> None:
    level = spectrogram(tone(1.0))
    row = round(440 / (24_000 / 1024))
    middle = level[:, level.shape[1] // 2]
    assert abs(int(np.argmax(middle)) - row) <= 1
    assert middle.max() == pytest.approx(20 * np.log10(8000 / 32768), abs=1.5)
    assert level[200:].max() < -60
