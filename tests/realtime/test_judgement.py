"""Finished or not, by the words."""

from __future__ import annotations

import pytest

from tests.realtime.bench import Bench
from voicechat.realtime.judgement import is_listening, sounds_finished


@pytest.mark.parametrize("text", ["Hello.", "Stop!", "What time is it?", 'He said "no."', "Yes.", "What is that for?"])
def test_finished(text):
    assert sounds_finished(text)


@pytest.mark.parametrize(
    "text", ["", " ", "...", "I would like to", "I would like to...", "Well,", "I want a table for.", "Um.", "so -"]
)
def test_unfinished(text):
    assert not sounds_finished(text)


def test_listening():
    assert all(map(is_listening, ["Mm-hm.", "uh-huh", "Yeah.", "Okay, I see.", "", "..."]))
    assert not any(map(is_listening, ["No.", "Stop", "Okay, stop.", "Yes, but", "I want", "yeah yeah yeah yeah yeah"]))


def listening(eagerness: str = "auto") -> Bench:
    bench = Bench()
    detection = {"type": "semantic_vad", "eagerness": eagerness}
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    return bench


def silence_until_committed(bench: Bench, text: str) -> float:
    """Seconds of silence after which a turn ends whose text is known after 0.3 s."""
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand(text)
    seconds = 0.3
    while "input_audio_buffer.committed" not in bench.kinds():
        bench.hear(0.02, False)
        seconds += 0.02
    return round(seconds, 2)


@pytest.mark.parametrize(
    ("eagerness", "finished", "unfinished"),
    [("low", 0.7, 2.5), ("medium", 0.4, 1.3), ("auto", 0.4, 1.3), ("high", 0.32, 0.7)],
)
def test_patience_follows_the_words_and_the_eagerness(eagerness, finished, unfinished):
    assert silence_until_committed(listening(eagerness), "What time is it?") == finished
    assert silence_until_committed(listening(eagerness), "What time") == unfinished


def test_server_vad_does_not_care():
    assert silence_until_committed(Bench(), "What time is it?") == 0.5


def test_going_on_makes_the_judgement_void():
    bench = listening()
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("Tell me.")
    bench.hear(0.4, True)
    bench.hear(0.5, False)
    assert "input_audio_buffer.committed" not in bench.kinds()
    bench.hear(0.9, False)
    assert "input_audio_buffer.committed" in bench.kinds()
