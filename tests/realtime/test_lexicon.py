"""Complete or not, a backchannel or not, by the words of a language."""

from __future__ import annotations

import pytest

from voicechat.realtime.lexicon import Lexicon, languages, lexicon, parse

ENGLISH = lexicon("en-US")


@pytest.mark.parametrize(
    "text",
    [
        "Hello.", "Stop!", "What time is it?", 'He said "no."', "Yes.", "What is that for?", "What is 2 plus 2?",
        "When is the best time to go?", "When I was a child, we lived here.", "Where are you from?", "Who is that?",
        "They do it very well.",
    ],
)  # fmt: skip
def test_complete(text):
    assert ENGLISH.is_complete(text)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "...", "I would like to", "I would like to...", "Well,", "I want a table for.", "Um.", "so -",
        "What is the?", "When I go to the beach.", "When I'm there.", "If it rains tomorrow?",
        "My phone number is 555.", "I like tea but.", "Can you tell me?", "I would like to know.", "?",
        "My sister and I?", "Well.",
        "So, well.",
    ],
)  # fmt: skip
def test_incomplete(text):
    assert not ENGLISH.is_complete(text)


@pytest.mark.parametrize(
    "text",
    [
        "Mm-hm.", "uh-huh", "Yeah.", "Okay, I see.", "", "...", "Yeah Yeah Yeah Yeah Yeah", "That's right.",
        "Oh, that is great!", "Exactly.", "Got it.", "Of course, yes.",
    ],
)  # fmt: skip
def test_backchannels(text):
    assert ENGLISH.is_backchannel(text)


@pytest.mark.parametrize(
    "text",
    [
        "No.", "Stop", "Okay, stop.", "Yes, but", "I want", "right, sure, ah, oh, wow", "That's wrong.",
        "That is enough.", "Is it right?", "Got it wrong", "It is",
    ],
)  # fmt: skip
def test_what_is_no_backchannel(text):
    assert not ENGLISH.is_backchannel(text)


def test_barge_ins_however_little_is_said():
    assert all(ENGLISH.takes_floor(text) for text in ["Stop.", "Okay, but", "No, wait.", "It is not true"])
    assert not any(ENGLISH.takes_floor(text) for text in ["Yeah.", "", "Shimmer.", "You have."])
    assert [ENGLISH.other_words(text) for text in ["Yeah, share.", "You have.", "That's it.", "That's right.", ""]] == [
        1, 2, 2, 0, 0,
    ]  # fmt: skip


def test_a_listener_may_go_on():
    assert all(ENGLISH.may_go_on(text) for text in ["Okay.", "Yeah.", "Mm, right", "I see"])
    assert not any(ENGLISH.may_go_on(text) for text in ["Mm-hm.", "Uh-huh", "", "..."])


@pytest.mark.parametrize(
    ("language", "complete", "incomplete", "backchannel", "other"),
    [
        ("de", "Wie spät ist es?", "Ich hätte gern ein Zimmer für.", "Ja, genau.", "Nein, warte."),
        ("fr", "Quelle heure est-il ?", "Je voudrais.", "D'accord, c'est vrai.", "Non, attends."),
        ("es", "¿Qué hora es?", "Me gustaría.", "Sí, claro.", "No, espera."),
        ("ko", "지금 몇 시예요?", "내일 비가 오는데.", "네, 그렇군요.", "아니요, 잠깐만요."),
    ],
)
def test_other_languages(language, complete, incomplete, backchannel, other):
    words = lexicon(language)
    assert words.is_complete(complete) and not words.is_complete(incomplete)
    assert words.is_backchannel(backchannel) and not words.is_backchannel(other)


def test_every_language_has_its_words():
    assert set(languages()) == {"de", "en", "es", "fr", "ko"}
    for language in languages():
        words = lexicon(language)
        assert words.backchannels and words.hums and words.open_words and words.hums <= words.backchannels
        assert words.barge_ins and not words.barge_ins & words.backchannels


def test_an_unknown_language_has_punctuation():
    assert lexicon("xx") == Lexicon()
    assert lexicon("xx").is_complete("Ano?") and not lexicon("xx").is_complete("Ano,")
    assert not lexicon("xx").is_backchannel("Ano.")


@pytest.mark.parametrize("wrong", [{"huh": "a"}, {"hums": 3}, {"hums": [True]}, {"open_digits": "3"}])
def test_wrong_files_are_refused(wrong):
    with pytest.raises(ValueError, match="huh|hums|open_digits"):
        parse(wrong)
