"""An end that was none is taken back: the turn goes on as one, and the response to its first half never was."""

from __future__ import annotations

from typing import Any

import pytest

from tests.realtime.bench import Bench
from voicechat.realtime.turn_state import TurnState

HALF, WHOLE = "Can you give me a tip today?", "Can you give me a tip today for a job interview?"


def ended(words: int = 2, **limits: Any) -> Bench:
    """A turn has ended at a likely end, and its response has been made; nothing of it was heard, where the server
    plays."""
    bench = Bench(judged=True, **limits)
    detection = {"type": "semantic_vad"}
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    bench.hear(0.8, True)
    bench.hear(0.2, False)
    bench.understand(HALF)
    bench.judge(0.9)
    bench.say(*["word "] * words)
    while not bench.all("input_audio_buffer.committed"):
        bench.hear(0.02, False)
    assert bench.session.turn.state is TurnState.TENTATIVE
    return bench


def go_on(bench: Bench, text: str = WHOLE) -> None:
    bench.hear(0.8, True)
    bench.hear(0.22, False)
    bench.understand(text)
    bench.judge(0.9)
    bench.hear(0.7, False)


@pytest.mark.parametrize("server", [False, True])
def test_who_goes_on_at_once_is_heard_as_one(server):
    bench = ended(server_plays=server)
    (first,) = bench.all("input_audio_buffer.committed")
    (reply,) = bench.all("response.created")
    if server:
        bench.play(0.1)
    bench.hear(0.06, True)
    assert bench.session.turn.state is TurnState.SPEAKING
    assert bench.done()["id"] == reply["response"]["id"] and bench.done()["status"] == "cancelled"
    deleted = [event["item_id"] for event in bench.all("conversation.item.deleted")]
    assert first["item_id"] in deleted and len(deleted) == 2 and not bench.session.conversation.items
    go_on(bench)
    assert bench.asked() == [("system", "Be brief."), ("user", WHOLE)], "the model hears one turn, and no reply before"
    assert len(bench.session.conversation.items) == 1
    bench.check()


def test_the_sound_of_the_whole_turn_is_heard():
    bench = ended()
    bench.hear(0.8, True)
    bench.hear(0.06, False)
    (job,) = bench.jobs.values()
    spoken = 0.8 + 0.8 + 0.06
    assert len(job.sound.samples) / 16_000 > spoken + 0.3, "both halves, and the pause between them"


def test_a_client_that_stops_its_player_is_not_told_of_an_error():
    bench = ended()
    item = next(event["item"]["id"] for event in bench.all("response.output_item.added"))
    bench.hear(0.06, True)
    before = len(bench.events)
    bench.tell("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=120)
    assert bench.kinds(before) == []
    go_on(bench)
    bench.check()


def test_who_goes_on_later_has_begun_another_turn():
    bench = ended(words=8)
    bench.hear(1.0, False)
    assert bench.session.turn.state is TurnState.REPLYING
    go_on(bench, "No, wait.")
    assert not bench.all("conversation.item.deleted")
    assert [text for role, text in bench.asked() if role == "user"] == [HALF, "No, wait."]
    bench.check()


def test_who_has_heard_more_than_a_syllable_interrupts():
    bench = ended(words=8, server_plays=True)
    for _ in range(24):
        bench.play(0.02)
        bench.hear(0.02, False)
        bench.now -= 0.02  # one clock for both
    assert bench.session.turn.state is TurnState.REPLYING
    bench.hear(0.5, True)
    bench.understand("No, wait for me.")
    assert bench.all("conversation.item.truncated") and not bench.all("conversation.item.deleted")
    bench.check()


def test_a_response_that_has_called_a_function_is_not_taken_back():
    bench = Bench(judged=True)
    tool = {"type": "function", "name": "look", "parameters": {}}
    detection = {"type": "semantic_vad"}
    bench.tell("session.update", session={"tools": [tool], "audio": {"input": {"turn_detection": detection}}})
    bench.hear(0.8, True)
    bench.hear(0.2, False)
    bench.understand(HALF)
    bench.judge(0.9)
    bench.say('<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    while not bench.all("input_audio_buffer.committed"):
        bench.hear(0.02, False)
    bench.hear(0.1, True)
    assert not bench.all("conversation.item.deleted")
    bench.check()


@pytest.mark.parametrize(
    "detection",
    [
        {"type": "server_vad"},
        {"type": "semantic_vad", "interrupt_response": False},
        {"type": "semantic_vad", "create_response": False},
    ],
)
def test_who_does_not_want_it_does_not_get_it(detection):
    bench = Bench(judged=True)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    bench.turn(None)
    bench.understand(HALF)
    bench.hear(1.0, False)
    bench.hear(0.1, True)
    assert not bench.all("conversation.item.deleted")
    bench.check()


@pytest.mark.parametrize("event", ["response.create", "conversation.item.create", "input_audio_buffer.clear"])
def test_a_client_that_acts_settles_it(event):
    bench = ended()
    fields = {}
    if event == "conversation.item.create":
        content = [{"type": "input_text", "text": "typed"}]
        fields = {"item": {"type": "message", "role": "user", "content": content}}
    bench.tell(event, **fields)
    bench.hear(0.2, True)
    assert not bench.all("conversation.item.deleted")
    bench.check()


def test_the_session_may_end_meanwhile():
    bench = ended()
    bench.take(bench.session.close())
    assert bench.session.turn.closed and not bench.running
    bench.check()


def test_what_the_client_commits_is_final():
    bench = Bench(judged=True)
    detection = {"type": "semantic_vad"}
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    bench.hear(0.8, True)
    bench.hear(0.1, False)
    before = bench.session.input.now_ms
    bench.tell("input_audio_buffer.commit")
    assert bench.session.input.now_ms == before, "no sound is made up"
    (first,) = bench.all("input_audio_buffer.committed")
    bench.understand(HALF)
    bench.hear(0.8, True)
    assert not bench.all("conversation.item.deleted"), "another turn begins"
    assert bench.session.conversation.items[0].id == first["item_id"]
    assert bench.done()["metadata"]["endpointing_ms"] == "100", "the silence that there was"
    bench.check()


def test_a_short_word_that_is_committed_is_a_turn():
    bench = Bench()
    bench.hear(0.06, True)
    bench.tell("input_audio_buffer.commit")
    assert bench.error()["code"] == "input_audio_buffer_commit_empty", "too little, and the turn stays open"
    bench.hear(0.04, True)
    bench.tell("input_audio_buffer.commit")
    assert len(bench.all("input_audio_buffer.committed")) == 1 and not bench.all("input_audio_buffer.cleared")
    bench.check()
