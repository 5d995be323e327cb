"""The user's words, told as they come and never taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.realtime.bench import Bench
from voicechat.realtime.partial_transcript import PartialTranscript

DELTA = "conversation.item.input_audio_transcription.delta"
TEXTS = st.lists(st.lists(st.sampled_from(["what", "is", "it", "it?", "Is", "it,", "…"]), max_size=6).map(" ".join))


@given(TEXTS, TEXTS)
def test_nothing_is_taken_back(texts, last):
    captions, told = PartialTranscript(), ""
    for text in texts:
        told += captions.hear(text)
        assert captions.told == told
    final = (last or [""])[0]
    piece = captions.finish(final)
    assert told + piece == final or (not piece and not final.startswith(told))


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12))
def test_a_text_that_only_grows_is_told_one_hearing_late(words):
    captions = PartialTranscript()
    for count in range(1, len(words) + 1):
        captions.hear(" ".join(words[:count]))
        assert captions.told.split() == words[: count - 1]
    assert (captions.told + captions.finish(" ".join(words))) == " ".join(words)


def test_only_what_two_hearings_agree_on_is_told():
    captions = PartialTranscript()
    assert captions.hear("What is the cap") == ""
    assert captions.hear("What is the capital of.") == "What is the"
    assert captions.hear("What is a capital of France and") == ""
    assert captions.hear("What is the capital of France and") == ""
    assert captions.hear("What is the capital of France and") == " capital of France and"
    assert captions.finish("What is the capital of France and Spain?") == " Spain?"


def test_a_changed_mind_is_told_by_the_transcript_alone():
    captions = PartialTranscript()
    captions.hear("Watt is it")
    assert captions.hear("Watt is it?") == "Watt is"
    assert captions.finish("What is it?") == ""


def asking(transcription: object, detection: str = "server_vad") -> Bench:
    bench = Bench()
    heard = {"transcription": transcription, "turn_detection": {"type": detection}}
    bench.tell("session.update", session={"audio": {"input": heard}})
    return bench


def speak_in_pieces(bench: Bench) -> None:
    bench.hear(1.2, True)
    bench.hear(0.12, False)
    bench.understand("What is")
    bench.hear(1.2, True)
    bench.hear(0.12, False)
    bench.understand("What is the capital")
    bench.hear(0.4, True)


def test_words_are_told_while_the_user_speaks():
    bench = asking({"model": "any"})
    speak_in_pieces(bench)
    (delta,) = bench.all(DELTA)
    assert delta["delta"] == "What is"
    started = bench.all("input_audio_buffer.speech_started")[0]
    assert delta["item_id"] == started["item_id"] and delta["content_index"] == 0
    bench.hear(0.7, False)
    bench.understand("What is the capital of France?")
    assert "".join(event["delta"] for event in bench.all(DELTA)) == "What is the capital of France?"
    (completed,) = bench.all("conversation.item.input_audio_transcription.completed")
    assert completed["item_id"] == started["item_id"]
    assert completed["transcript"] == "What is the capital of France?"
    bench.check()


def test_nothing_is_heard_ahead_for_a_client_that_did_not_ask():
    for transcription in (None, {}):
        bench = asking(transcription)
        bench.hear(1.2, True)
        bench.hear(0.12, False)
        assert not bench.jobs
    bench = asking(None, "semantic_vad")
    speak_in_pieces(bench)
    assert not bench.all(DELTA)


def test_the_ears_are_asked_twice_a_second_at_most():
    bench = asking({"model": "any"})
    asked = 0
    for _ in range(20):
        bench.hear(0.2, True)
        bench.hear(0.12, False)
        asked += len(bench.jobs)
        bench.understand("word")
    assert 9 <= asked <= 13


def test_a_probe_that_is_late_holds_nothing_up():
    bench = asking({"model": "any"})
    bench.hear(1.2, True)
    bench.hear(0.12, False)
    (probe,) = bench.jobs
    bench.hear(0.5, True)
    bench.hear(0.6, False)
    assert probe not in bench.jobs, "called off when the turn is over"
    assert bench.session.on_text(probe, "too late") == []
    bench.understand("What is it?")
    assert bench.asked()[-1] == ("user", "What is it?")
    bench.check()


def test_who_speaks_without_a_pause_can_be_read_too():
    bench = asking({"model": "any"}, "semantic_vad")
    texts = ["I went to", "I went to the market and", "I went to the market and bought"]
    for text in texts:
        bench.hear(3.1, True)
        assert len(bench.jobs) == 1
        bench.understand(text)
    assert "".join(event["delta"] for event in bench.all(DELTA)) == "I went to the market and"
    bench.hear(0.22, False)
    assert len(bench.jobs) == 1, "the pause is heard by itself"
    silent = asking(None, "semantic_vad")
    silent.hear(7.0, True)
    assert not silent.jobs
    bench.check()
