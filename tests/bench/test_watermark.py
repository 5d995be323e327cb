"""The watermark's bench goes on where it was broken off, and hears every kind of made sound."""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from voicechat.bench import cli, watermark
from voicechat.bench.watermark_sounds import KINDS, made_sound


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
    given = ("--clips", str(clips), "--records", str(records), "--json", "--made-hours")
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
