"""How written text is read: the table of readings, and what holds for any text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.reading.normaliser import MAX_ADDRESS, Normaliser, Options, Spoken, spoken

_TABLE = Path(__file__).with_name("readings.tsv")
_SIGNS = "aeT5. ,-*_#$/:'\"()[]|\n0IVX@%&+=<>~°½²“…St€^`√→{}\\"


def _cases() -> list[tuple[str, str]]:
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    return [(line.split("\t")[0], line.split("\t")[1]) for line in lines if "\t" in line and line[:2] != "# "]


def _stream(pieces: list[str]) -> list[Spoken]:
    normaliser = Normaliser()
    return [*(word for piece in pieces for word in normaliser.feed(piece)), *normaliser.finish()]


def test_the_table_is_large() -> None:
    assert len(_cases()) >= 400


@pytest.mark.parametrize(("written", "read"), _cases())
def test_reading(written: str, read: str) -> None:
    assert spoken(written).lower() == read.lower()


def _within() -> list[tuple[str, str]]:
    """Every third case that neither begins a line nor ends a sentence by itself."""
    marks = ("# ", "## ", "- ", "* ", "> ", "1. ", "12) ")
    return [case for case in _cases() if case[1] and not case[0].startswith(marks) and case[0][-1] not in ".,"][::3]


@pytest.mark.parametrize(("written", "read"), _within())
def test_reading_within_a_sentence(written: str, read: str) -> None:
    """What stands around a phrase does not change how it is read, where it may stand in the middle of a line."""
    assert spoken(f"so {written} is it").lower() == f"so {read.lower()} is it"


def test_blocks_are_announced_or_skipped() -> None:
    text = "Use this:\n```python\nx = 5\n```\nDone.\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\nSee."
    assert spoken(text) == "Use this: Code in Python. Done. A table of two columns and three rows. See."
    assert spoken(text, Options(code="skip", tables="skip")) == "Use this: Done. See."


@pytest.mark.parametrize(
    "text",
    ["<think>They ask 5 things.\nHm.</think>Yes.", "<think>", "<think>never closed. 5", "<thinking>a</thinking> Yes."],
)
def test_thoughts_are_never_read(text: str) -> None:
    assert spoken(text) in {"Yes.", ""}


def test_emoji_by_name_where_that_is_wanted() -> None:
    assert spoken("Hi 👍 all", Options(emoji="name")) == "Hi thumbs up all"
    assert spoken("Hi 👍 all") == "Hi all"


def test_the_operator_says_how_words_are_pronounced() -> None:
    options = Options(pronunciations={"kubectl": "cube control", "nginx": "/ˈɛndʒɪn ɛks/"})
    assert spoken("Run Kubectl, now.", options) == "Run cube control, now."
    normaliser = Normaliser(options)
    words = [*normaliser.feed("Ask nginx's log."), *normaliser.finish()]
    assert [(word.text, word.ipa) for word in words][1] == ("nginx's", "ˈɛndʒɪn ɛks")


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(max_size=80), st.text(alphabet=_SIGNS, max_size=60)), st.lists(st.integers(1, 9), max_size=30))
def test_the_pieces_do_not_count(text: str, cuts: list[int]) -> None:
    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole = _stream([text])
    assert _stream([*pieces, rest]) == whole
    assert [word.end for word in whole] == sorted(word.end for word in whole)
    assert all(word.text.strip() == word.text != "" and 0 <= word.end < len(text) for word in whole)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123456789.,:/-+$€%°½²x ()#emkKpt'\"", min_size=1, max_size=40))
def test_no_digit_is_left(text: str) -> None:
    read = spoken(f"a {text}")
    assert not any(character.isdigit() for character in read), read


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet=st.characters(categories=["Ll", "Lu"], max_codepoint=0x24F), min_size=1, max_size=20))
def test_words_pass_as_they_are(word: str) -> None:
    assert spoken(f"so {word.lower()}").casefold().startswith("so")


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**15), st.sampled_from(["{}", "${}", "{} km", "{}%", "{} €"]))
def test_numbers_keep_their_value(number: int, form: str) -> None:
    """Grouped in either way a number is read as the same words."""
    plain, english, continental = str(number), f"{number:,}", f"{number:,}".replace(",", ".")
    if 1000 <= number <= 2999:
        return  # a year, without its separators
    if len(plain) <= 15:
        assert spoken(form.format(english)) == spoken(form.format(plain))
    octets = continental.split(".")
    address = len(octets) == 4 and all(int(octet) < 256 and str(int(octet)) == octet for octet in octets)
    if number >= 10**6 and len(plain) <= 15 and not address:
        assert spoken(form.format(continental)) == spoken(form.format(plain))


def test_long_runs_are_cut_but_addresses_are_not() -> None:
    assert len(_stream(["x" * 500])) > 5
    assert spoken("https://example.com/" + "a" * 500) == "example dot com"
    assert spoken("https://example.com/" + "a" * (2 * MAX_ADDRESS)).startswith("example dot com")


def test_words_wait_for_three_more_at_most() -> None:
    """However numbers are heaped, what is read lags behind what is written by no more than three words."""
    normaliser = Normaliser()
    for index, word in enumerate(("5 - 10 of the 3 May to 7 km " * 8).split()):
        normaliser.feed(f"{word} ")
        assert len(normaliser._pending) <= 4, index
