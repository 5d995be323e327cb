"""The operator's file: what it may hold, and that what it says is what the Talker reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from voicechat.models.embedded.frontend import Reader, from_ipa, read_text
from voicechat.reading.normaliser import Options
from voicechat.reading.pronunciations import PronunciationsError, load


def _symbols(text: str, pronunciations: dict[str, str]) -> list[int]:
    reader = Reader(Options(pronunciations=pronunciations))
    return [mark.symbol for mark in [*reader.feed(text), *reader.finish()]]


def test_words_and_ipa(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text('Kubectl: cube control\nnginx: "/ˈɛndʒɪn ˈɛks/"\n', encoding="utf-8")
    assert load(file) == {"kubectl": "cube control", "nginx": "/ˈɛndʒɪn ˈɛks/"}
    file.write_text("", encoding="utf-8")
    assert load(file) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a", "a mapping"),
        ("two words: x", "is not one word"),
        ("yes: x", "is not one word"),
        ("word: [x]", "not text"),
        ("word:", "is missing"),
        ("a: [", "p.yaml"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PronunciationsError, match=complaint):
        load(file)
    with pytest.raises(PronunciationsError, match="No such file"):
        load(tmp_path / "none.yaml")


def test_what_the_operator_says_is_what_the_talker_reads() -> None:
    said = _symbols("Use kubectl now.", {"kubectl": "cube control"})
    assert said == [mark.symbol for mark in read_text("Use cube control now.")]


def test_ipa_of_a_word_that_the_lexicon_has_too_sounds_the_same() -> None:
    """Dictionary IPA of "chair", "judge" and "goat" gives the lexicon's own symbols."""
    for word, ipa in (("chair", "ˈtʃɛr"), ("judge", "ˈdʒʌdʒ"), ("goat", "ˈɡoʊt")):
        assert _symbols(f"the {word}", {word: f"/{ipa}/"}) == _symbols(f"the {word}", {}), word
    assert from_ipa("dʒaɪ") == "ʤI"
