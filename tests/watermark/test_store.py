"""The key on disk: made once, whole, for its owner alone, whoever comes first."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from voicechat.config import ConfigError, load_settings
from voicechat.watermark.keys import Key
from voicechat.watermark.store import payload_of, stored_key


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "watermark.key"
    before = os.umask(0)
    try:
        key = stored_key(path)
    finally:
        os.umask(before)
    assert stored_key(path) == key and Key.parse(path.read_text()) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["watermark.key"]


def test_all_who_start_at_once_get_the_same_key(tmp_path: Path) -> None:
    for attempt in range(20):
        path, together = tmp_path / f"{attempt}.key", Barrier(8)

        def start(_: int, path: Path = path, together: Barrier = together) -> Key:
            together.wait()
            return stored_key(path)

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(start, range(8)))) == 1
    assert len(list(tmp_path.iterdir())) == 20


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_key_is_made_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """link(2): EPERM, "The filesystem does not support the creation of hard links"; network shares say ENOTSUP."""

    def link(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    test_a_key_is_made_once_for_its_owner_alone(tmp_path)
    (tmp_path / "many").mkdir()
    test_all_who_start_at_once_get_the_same_key(tmp_path / "many")


def test_a_link_that_fails_for_another_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="Input/output"):
        stored_key(tmp_path / "watermark.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "abcd", "00" * 33, "zz" * 32, "ключ"])
def test_a_file_without_a_key_is_told_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "watermark.key"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"watermark\.key holds no watermark key") as caught:
        stored_key(path)
    assert not text or text not in str(caught.value)
    assert path.read_text(encoding="utf-8") == text


def test_payloads() -> None:
    assert payload_of(0) == 0 and payload_of(0xFFFF) == 0xFFFF
    assert payload_of("acme") == int(hashlib.sha256(b"acme").hexdigest()[:4], 16)
    for wrong in (-1, 0x10000):
        with pytest.raises(ValueError, match="from 0 to 65535"):
            payload_of(wrong)


def test_settings() -> None:
    key = "AB" * 32
    mark = load_settings(overrides=[f"watermark.key={key}", "watermark.payload=4711"], environ={}).watermark
    assert mark.enabled and mark.key is not None
    assert Key.parse(mark.key).secret == bytes.fromhex(key) and mark.payload == 4711
    assert key.lower() not in repr(mark), "logs show no key"
    assert load_settings(overrides=["watermark.payload=acme"], environ={}).watermark.payload == "acme"
    for wrong, told in {
        "watermark.key=abc": "64 hex",
        "watermark.known_keys=abc": "64 hex",
        "watermark.payload=70000": "from 0 to 65535",
        "watermark.signature.certificate=a.pem": "private_key is not",
    }.items():
        with pytest.raises(ConfigError, match=told):
            load_settings(overrides=[wrong], environ={})
