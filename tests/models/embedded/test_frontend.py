"""The streaming text reader: stable rows, whatever the pieces; sensible readings; nothing crashes it."""

from __future__ import annotations

import itertools
import json
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.models.embedded.frontend import PAUSE, Row, TextFrontend, read_text, token_at

VOCABULARY = json.loads((files("hibari") / "assets" / "vocab.json").read_text(encoding="utf-8"))
SYMBOLS = {number: symbol for symbol, number in VOCABULARY.items()} | {0: "|"}
TEXT = (
    'On January 5, 2024, Dr. Smith said: "It\'s **5 km** away!" Then the others read it, to us, in the open air. '
    "See [the docs](https://example.com/x); cost: $5 million.\n- one\n- two 😀 done."
)


def spoken(text: str) -> str:
    return "".join(SYMBOLS[mark.symbol] for mark in read_text(text))


def stream(pieces: list[str]) -> list[Row]:
    frontend = TextFrontend()
    rows = [row for piece in pieces for row in frontend.push(piece)]
    return rows + frontend.finish()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The capital of France is Paris.", "|ðə kˈæpəTᵊl ʌv fɹˈæns ɪz pˈɛɹəs.|"),
        ("the apple, the pear", "|ði ˈæpᵊl, ðə pˈɛɹ|"),
        ("Yes. No!", "|jˈɛs.|nˈO!|"),
        ("**Bold** `code` 😀", "|bˈOld kˈOd|"),
        ("It cost $5 million.", "|ˌɪt kˈɔst fˈIv mˈɪljᵊn dˈɑləɹz.|"),
    ],
)
def test_readings(text: str, expected: str) -> None:
    assert spoken(text) == expected


def test_addresses_are_read_by_their_host() -> None:
    assert spoken("Go to https://www.example.com/a?b=c now.") == spoken("Go to example dot com now.")
    assert spoken("mail me@site.org,") == spoken("mail me at site dot org,")


def test_titles_and_initials_do_not_end_a_sentence() -> None:
    assert spoken("Mr. Smith met J. K. Rowling. He left.").count("|") == 3


def test_list_marks_and_headings_are_not_read() -> None:
    assert spoken("# Title\n- one\n* two\n1. three") == spoken("Title\none\ntwo\n1, three")


@pytest.mark.parametrize("text", ["", "   \n", "😀🎉", "***", "...", "。", "```"])
def test_nothing_to_say_gives_no_rows(text: str) -> None:
    assert stream([text]) == []


def test_rows_do_not_depend_on_the_pieces() -> None:
    whole = [mark.symbol for mark in read_text(TEXT)]
    for size in (1, 2, 3, 5, 11, len(TEXT)):
        pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
        assert [row.symbol for row in stream(pieces)] == whole


def test_a_word_is_settled_when_the_next_begins() -> None:
    frontend = TextFrontend()
    assert frontend.push("Paris") == []
    assert [SYMBOLS[row.symbol] for row in frontend.push(" w")] == list("|pˈɛɹəs")
    assert frontend.push("as") == []


def test_rows_name_the_token_that_completed_the_word() -> None:
    rows = stream(["Un", "like", "ly", "", " things", " happen", "."])
    words: list[set[int]] = [set()]
    for row in rows:
        if SYMBOLS[row.symbol] == " ":
            words.append(set())
        words[-1].add(row.token)
    assert words == [{2}, {4}, {6}]
    assert rows[0].symbol == PAUSE and rows[-1] == Row(PAUSE, 6)


def test_token_at() -> None:
    assert [token_at([2, 2, 5], position) for position in range(6)] == [0, 0, 2, 2, 2, 2]


def test_long_sentences_are_cut() -> None:
    symbols = [mark.symbol for mark in read_text("extraordinary things, " * 60)]
    pauses = [index for index, symbol in enumerate(symbols) if symbol == PAUSE]
    assert max(b - a for a, b in itertools.pairwise(pauses)) < 400


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=80), st.lists(st.integers(1, 9), max_size=30))
def test_any_text_can_be_read_in_any_pieces(text: str, cuts: list[int]) -> None:
    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    rows = stream([*pieces, rest])
    assert [row.symbol for row in rows] == [mark.symbol for mark in read_text(text)]
    assert all(0 <= row.symbol < 178 and 0 <= row.token < len(pieces) + 1 for row in rows)
    assert [row.token for row in rows] == sorted(row.token for row in rows)
    assert not rows or (rows[0].symbol == PAUSE and rows[-1].symbol == PAUSE)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="aeT5. ,-*_#$/:'\"()[]|\n0IVX@%&+=<>~°½²“…St", max_size=60))
def test_any_marks_and_numbers_can_be_read(text: str) -> None:
    rows = stream(list(text))
    assert [row.symbol for row in rows] == [mark.symbol for mark in read_text(text)]
    assert not rows or rows[-1].symbol == PAUSE


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="the red 5. ,A\n", max_size=80), st.integers(0, 80))
def test_a_longer_text_keeps_the_rows_of_its_beginning(text: str, cut: int) -> None:
    frontend = TextFrontend()
    before = frontend.push(text[:cut])
    whole = stream([text[:cut], text[cut:]])
    assert whole[: len(before)] == before
