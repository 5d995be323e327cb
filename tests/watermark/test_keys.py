"""Keys: parsed with clear errors, named without telling the secret."""

from __future__ import annotations

import pytest

from voicechat.watermark.keys import InvalidKey, Key

_TEXT = "00112233445566778899aabbccddeeff" * 2


def test_a_key_is_read_from_its_digits() -> None:
    key = Key.parse(f"  {_TEXT.upper()}\n")
    assert key.secret == bytes.fromhex(_TEXT)
    assert key == Key(bytes.fromhex(_TEXT))


def test_the_secret_is_never_printed() -> None:
    key = Key.parse(_TEXT)
    assert key.id in str(key)
    for text in (str(key), repr(key), f"{key}", key.id):
        assert "0011" not in text and repr(key.secret) not in text


def test_ids_differ_and_are_short() -> None:
    first, second = Key(bytes(32)), Key(bytes(31) + b"\x01")
    assert len(first.id) == 8 and first.id != second.id


def test_derived_bytes_differ_by_purpose_and_go_on() -> None:
    key = Key.parse(_TEXT)
    assert key.derive("signs", 100)[:40] == key.derive("signs", 40)
    assert key.derive("signs", 32) != key.derive("id", 32)


@pytest.mark.parametrize("text", ["", "00" * 31, "00" * 33, "g" * 64, "0x" + "00" * 31])
def test_other_texts_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(InvalidKey, match="64 hexadecimal digits") as caught:
        Key.parse(text)
    assert not text or text not in str(caught.value)


def test_other_lengths_are_refused() -> None:
    with pytest.raises(InvalidKey, match="32 bytes"):
        Key(b"short")
