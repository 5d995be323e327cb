"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import io
import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from voicechat.assemble.progress import Reporter
from voicechat.assemble.store import (
    SMALL,
    STAMP,
    damage,
    is_whole,
    link_or_copy,
    locked,
    new_file,
    new_folder,
    remove_partials,
    write_stamp,
)


def _fail(path: Path) -> None:
    path.write_text("half")
    raise KeyboardInterrupt


def test_a_failed_block_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    target = tmp_path / "kind" / "model"
    with new_folder(target) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), new_folder(target) as folder:
        _fail(folder / "a")
    assert (target / "a").read_text() == "old"
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "file") as partial:
        _fail(partial)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "kind", "model"]
    with new_folder(target) as folder:
        (folder / "b").write_text("new")
    assert [path.name for path in target.iterdir()] == ["b"]


def test_partials_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / "kind" / "model.partial").mkdir(parents=True)
    (tmp_path / "kind" / "model").mkdir()
    remove_partials(tmp_path)
    assert [path.name for path in (tmp_path / "kind").iterdir()] == ["model"]


def test_a_stamp_tells_other_recipes_and_damage(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"12345")
    assert not is_whole(tmp_path, {"recipe": 1})
    write_stamp(tmp_path, {"recipe": 1})
    assert is_whole(tmp_path, {"recipe": 1}, verify=True)
    assert not is_whole(tmp_path, {"recipe": 2})
    (tmp_path / "weights").write_bytes(b"12346")
    assert not is_whole(tmp_path, {"recipe": 1}), "a small file is read each time"
    (tmp_path / "weights").write_bytes(b"1234")
    assert not is_whole(tmp_path, {"recipe": 1})
    (tmp_path / STAMP).write_text('{"recipe": ')
    assert not is_whole(tmp_path, {"recipe": 1})


def test_links_or_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    link_or_copy(tmp_path / "a", tmp_path / "b")

    def refuse(_self: Path, _target: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    link_or_copy(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "b").read_text() == (tmp_path / "c").read_text() == "x"


def _hold(folder: Path, held: Event, release: Event) -> None:
    with locked(folder, Reporter(quiet=True)):
        held.set()
        release.wait(30)


def test_two_processes_take_turns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, release))
    other.start()
    assert held.wait(30)
    log = io.StringIO()

    class Announced(Reporter):
        def say(self, line: str) -> None:
            super().say(line)
            release.set()

    with locked(tmp_path, Announced(log)):
        assert "another process" in log.getvalue()
    other.join(30)
    assert other.exitcode == 0


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, release))
    other.start()
    assert held.wait(30)
    other.kill()
    other.join(30)
    started = time.monotonic()
    with locked(tmp_path, Reporter(quiet=True)):
        assert time.monotonic() - started < 30


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    """A file that is cut short, changed, or gone; of a large one that was changed only who verifies learns."""
    assert damage(tmp_path) is None, "nothing was ever made here"
    weights, config = tmp_path / "weights", tmp_path / "config.json"
    weights.write_bytes(bytes(SMALL + 1))
    config.write_text('{"a": 1}')
    write_stamp(tmp_path, {"recipe": 1})
    assert damage(tmp_path) is None
    assert damage(tmp_path, verify=True) is None
    config.write_text('{"a": 2}')
    assert damage(tmp_path) == "config.json is not what it was (its SHA-256 differs)"
    assert not is_whole(tmp_path, {"recipe": 1})
    config.write_text('{"a": 1}')
    weights.write_bytes(bytes(SMALL) + b"x")
    assert damage(tmp_path) is None
    assert damage(tmp_path, verify=True) == "weights is not what it was (its SHA-256 differs)"
    weights.write_bytes(bytes(SMALL))
    assert damage(tmp_path) == f"weights has {SMALL} bytes instead of {SMALL + 1}"
    weights.unlink()
    assert damage(tmp_path) == "weights is missing"
    (tmp_path / STAMP).write_text("{")
    assert "can't be read" in str(damage(tmp_path))
