"""The watermark's bench goes on where it was broken off, and hears every kind of made sound."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from voicechat.bench import cli, watermark, watermark_clips, watermark_sounds
from voicechat.bench.outcome import BenchError
from voicechat.bench.watermark_sounds import KINDS, made_sound
from voicechat.contract.sound import Pcm


def _options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(["watermark", *arguments])


def test_what_the_records_hold_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clips, records = tmp_path / "clips", tmp_path / "records.jsonl"
    clips.mkdir()
    (clips / "one.wav").write_bytes(b"no sound: whoever reads this fails")
    common = {"job": "one", "clip": "one", "embed": 0.01, "silence_dbfs": -90.0, "attack": "clean", "row": "clean"}
    found = {"length": 2.0, "p": 1e-9, "p_blind": 1e-5, "exact": True, "read_wrong": False, "score": 20.0}
    wrong = {**found, "p": 1.0, "exact": False}
    unmarked = {
        "job": "made 0",
        "kind": "music",
        "keys": 2,
        "s": 60.0,
        "p": 1.0,
        "scores": [3.0],
        "found": 0,
        "read": 0,
    }
    lines = [{**common, **found, "wrong": wrong}, unmarked]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ("--clips", str(clips), "--records", str(records), "--json", "--quality", "0", "--made-hours")
    assert watermark.main(_options(*given, "0.02")) == 0
    report = json.loads(capsys.readouterr().out)
    (line,) = report["table"]
    assert (line["windows"], line["found"], line["found_blind"], line["exact"]) == (1, 1.0, 0.0, 1.0)
    assert report["unmarked"]["hours"] == pytest.approx(1 / 60)
    assert watermark.main(_options(*given, "0.04")) == 0  # a second minute is made, and added
    report = json.loads(capsys.readouterr().out)
    assert report["unmarked"]["hours"] == pytest.approx(2 / 60) and report["unmarked"]["found"] == 0
    assert len(records.read_text().splitlines()) == 3


def test_perth_is_asked_about_unmarked_sound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud:
        """In the place of resemble-perth: sees a mark in whatever is loud."""

        def __init__(self, device: str) -> None:
            assert device == "cpu"

        def get_watermark(self, sound: np.ndarray[tuple[int], np.dtype[np.float32]], sample_rate: int) -> list[float]:
            assert sample_rate == 16_000
            return [float(np.abs(sound).max() > 0.3)] * 4

    monkeypatch.setitem(sys.modules, "perth", types.SimpleNamespace(PerthImplicitWatermarker=Loud))
    (music,) = watermark._unmarked("made 0", 0, 1, True)
    assert music["kind"] == "music" and music["perth"]["2"][0] == 30 and music["perth"]["5"] == [12, 12]
    quiet = np.concatenate([np.full(160_000, 0.01), np.zeros(64_000)]).astype(np.float32)
    quiet[:160_000:2] *= -1
    assert watermark._Perth().found(quiet, 16_000) == {"2": [5, 0], "5": [2, 0]}
    line = watermark._summary([music, {**music, "kind": "noise", "perth": {"2": [30, 1], "5": [12, 0]}}])
    assert line["perth_windows_and_found"]["noise, 2 s"] == [30, 1]


def test_made_sounds_are_of_every_kind_and_each_its_own() -> None:
    made = [made_sound(number) for number in range(6)]
    assert [kind for kind, _ in made] == [*KINDS, *KINDS]
    assert all(len(sound) == 60 * 16_000 and 0.5 < np.abs(sound).max() <= 1 for _, sound in made)
    assert all(not np.array_equal(made[n][1], made[n + 3][1]) for n in range(3))


def test_the_mark_is_judged_on_clips(tmp_path: Path) -> None:
    """PESQ and DNSMOS where they are installed; of a clip against itself, marked, both are nearly as good."""
    from tests.human_speech import recording
    from voicechat.bench.watermark_quality import quality_of, quality_summary
    from voicechat.media.wav import encode_wav

    path = tmp_path / "person.wav"
    path.write_bytes(encode_wav(recording(6.0), 24_000))
    (record,) = quality_of(path, None)
    assert record["job"] == "quality person" and "wer_marked" not in record
    if "pesq" in record:
        assert 4.2 < record["pesq"] <= 4.65
    heard = {"wer_unmarked": [1, 10], "wer_marked": [2, 10]}
    words = {"dnsmos_unmarked": 3.2, "dnsmos_marked": 3.1}
    summary = quality_summary([{"pesq": 4.5, **words, **heard}, {"pesq": 4.3, **words, **heard}])
    assert summary["pesq_wb"] == pytest.approx(4.4) and summary["pesq_wb_lowest"] == 4.3
    assert summary["dnsmos_drop"] == pytest.approx(0.1) and summary["dnsmos_drop_error"] == pytest.approx(0.0)
    assert (summary["words"], summary["wer_unmarked"], summary["wer_marked"]) == (20, 10.0, 20.0)
    assert quality_summary([]) == {"clips": 0}


async def test_clips_are_spoken_once_by_a_server_that_marks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken: list[tuple[str, str, bool]] = []

    class Client:
        listed: ClassVar[dict[str, Any]] = {"voices": ["alto", "joe"], "watermark": {"enabled": False}}

        async def speak(self, text: str, *, voice: str, latency_first: bool, seed: int, timeout_s: float) -> Pcm:
            spoken.append((text, voice, latency_first))
            return np.full(2400, seed % 100, np.int16)

    @contextlib.asynccontextmanager
    async def serving(options: argparse.Namespace) -> AsyncIterator[types.SimpleNamespace]:
        assert options.overrides[-1] == "watermark.enabled=false"
        yield types.SimpleNamespace(client=Client())

    monkeypatch.setattr(watermark_clips, "serving", serving)
    texts = tmp_path / "texts.json"
    texts.write_text('[{"key": "a", "text": "One."}, {"key": "b", "text": "Two."}]')
    folder = tmp_path / "clips"
    for count in ("1", "2"):
        options = _options("--clips", str(folder), "--texts", str(texts), "--count", count, "--model", "embedded-tiny")
        assert await watermark_clips.make_clips(options) == folder
    assert len(spoken) == 8 == len(set(spoken)) == len(list(folder.glob("*.flac")))
    assert (folder / "joe-quality-001.txt").read_text() == "Two."
    assert watermark_sounds.read_sound(folder / "joe-quality-001.flac")[0] == 1
    monkeypatch.setitem(Client.listed, "watermark", {"enabled": True})
    with pytest.raises(BenchError, match="marks what it says"):
        await watermark_clips.make_clips(options)
