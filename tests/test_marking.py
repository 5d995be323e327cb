"""Which keys a server looks by, also one that can't keep a key of its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from voicechat.config import Settings, load_settings
from voicechat.marking import keys_to_check
from voicechat.server import file_checker
from voicechat.watermark.keys import Key

FURTHER = "ab" * 32


def settings(folder: Path, *overrides: str) -> Settings:
    return load_settings("embedded-tiny", overrides=(f"data_dir={folder}", *overrides), environ={})


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which no file can be made, not even by root, whom modes don't bind."""
    really = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT and Path(os.fsdecode(path)).is_relative_to(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
        return really(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    return tmp_path


def test_a_server_that_marks_nothing_starts_without_a_key(read_only: Path, caplog: pytest.LogCaptureFixture) -> None:
    off = settings(read_only, "watermark.enabled=false")
    assert file_checker(off) is None
    assert "no watermark key" in caplog.text and "Read-only file system" in caplog.text
    further = settings(read_only, "watermark.enabled=false", f"watermark.known_keys={FURTHER}")
    assert keys_to_check(further) == [Key.parse(FURTHER)] and file_checker(further) is not None


def test_a_server_that_marks_does_not(read_only: Path) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        file_checker(settings(read_only))


def test_a_key_that_can_not_be_read_is_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "watermark.key").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        file_checker(settings(tmp_path, "watermark.enabled=false"))


def test_files_are_checked_within_bounds(tmp_path: Path) -> None:
    checker = file_checker(settings(tmp_path, "watermark.max_check_minutes=90"))
    assert checker is not None and checker._given[2] == 90 * 60


def test_a_server_that_can_keep_its_key_looks_by_it_first(tmp_path: Path) -> None:
    keys = keys_to_check(settings(tmp_path, "watermark.enabled=false", f"watermark.known_keys={FURTHER}"))
    assert keys == [Key.parse((tmp_path / "watermark.key").read_text()), Key.parse(FURTHER)]
