"""What the user says into a reply stops it, or does not; and what is left of a reply that was stopped."""

from __future__ import annotations

import pytest

from tests.realtime.bench import WORD, Bench, manual, message


def test_barge_in_on_websocket_cancels_and_the_client_truncates():
    bench = Bench()
    bench.turn()
    bench.say(*[f"w{i} " for i in range(10)])
    item_id = bench.all("response.output_item.added")[0]["item"]["id"]
    bench.hear(0.4, True)
    done = bench.done()
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert bench.cancelled
    bench.say("late", generation=1)
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=600)
    assert bench.events[-1]["type"] == "conversation.item.truncated"
    assert bench.session.conversation.get(item_id).text() == "w0 w1"
    for wrong in (-5, 601):
        bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=wrong)
        assert bench.error()["param"] == "audio_end_ms"
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0)
    assert bench.events[-1]["audio_end_ms"] == 0
    assert bench.session.conversation.get(item_id).text() == "", "nothing of it was heard"
    bench.check()


def test_barge_in_where_the_server_plays_truncates_at_what_was_played():
    bench = Bench(server_plays=True)
    bench.turn()
    bench.say(*["word "] * 20)
    bench.play(1.0)
    bench.hear(0.5, True)
    assert bench.held, "quiet while it is not known what this is"
    bench.understand("Stop it now")
    started = bench.kinds().index("input_audio_buffer.speech_started", 4)
    assert bench.kinds()[started + 1] == "output_audio_buffer.cleared"
    (truncated,) = bench.all("conversation.item.truncated")
    assert truncated["audio_end_ms"] == 1000
    assert bench.session.conversation.get(truncated["item_id"]).text().split() == ["word"] * 4
    assert bench.done()["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    bench.check()


def test_a_cough_during_the_reply_does_nothing():
    bench = Bench()
    bench.turn()
    bench.say(*["word "] * 20)
    bench.hear(0.12, True)
    bench.hear(0.6, False)
    assert bench.session.replies.live is not None
    assert len(bench.all("input_audio_buffer.speech_started")) == 1


def test_a_cough_where_the_server_plays_makes_it_wait_and_go_on():
    bench = Bench(server_plays=True)
    bench.turn()
    bench.say(*["word "] * 20)
    bench.play(1.0)
    bench.hear(0.1, True)
    assert bench.held, "quiet after 60 ms"
    before = bench.played
    bench.play(0.2)
    assert bench.played == before
    bench.hear(0.38, False)
    assert bench.held, "more may follow"
    bench.hear(0.02, False)
    assert not bench.held
    bench.play(0.2)
    assert bench.played == before + 4800, "on from the very sample"
    assert "output_audio_buffer.cleared" not in bench.kinds()
    bench.hear(1.2, True)
    assert "output_audio_buffer.cleared" in bench.kinds() and not bench.held, "too much to be nothing"
    assert bench.all("conversation.item.truncated")[0]["audio_end_ms"] == 1200
    bench.check()


def interrupted_by(text: str | None, voice: float = 0.4) -> Bench:
    """A reply that the server plays, into which the user speaks shortly; ``text`` is what the ears make of it."""
    bench = Bench(server_plays=True)
    bench.turn()
    bench.say(*["word "] * 20)
    bench.play(1.0)
    bench.hear(voice, True)
    assert bench.held and len(bench.all("input_audio_buffer.speech_started")) == 2
    bench.hear(0.24, False)
    assert bench.held, "it waits for the words"
    if text is not None:
        bench.understand(text)
    return bench


@pytest.mark.parametrize("text", ["Mm-hm.", "Uh-huh", "Yeah, okay.", "", "I see!"])
def test_a_listeners_word_does_not_stop_the_reply(text):
    bench = interrupted_by(text)
    assert bench.held == (text in ("Yeah, okay.", "I see!")), "after these a little longer: a 'but' may follow"
    bench.hear(0.26, False)
    assert not bench.held and bench.playing
    before = bench.played
    bench.hear(0.1, False)
    bench.play(0.4)
    assert bench.played == before + 9600
    assert bench.kinds()[-2:] == ["input_audio_buffer.speech_stopped", "input_audio_buffer.cleared"]
    assert len(bench.all("input_audio_buffer.committed")) == 1 and len(bench.started) == 1
    bench.finish()
    bench.play(10)
    assert bench.done()["status"] == "completed"
    bench.check()


@pytest.mark.parametrize("text", ["Stop.", "No, wait.", "Yes, but why?"])
def test_a_short_word_that_means_something_stops_the_reply(text):
    bench = interrupted_by(text)
    assert "conversation.item.truncated" in bench.kinds() and not bench.playing
    bench.hear(0.4, False)
    assert bench.asked()[-1] == ("user", text)
    bench.check()


def test_a_word_that_begins_a_question_is_none_of_a_listener():
    bench = interrupted_by("Okay.")
    before = bench.played
    bench.hear(0.2, False)
    bench.hear(0.32, True)
    assert bench.held, "it is asked again what is being said"
    bench.understand("Okay, but how much is")
    assert "output_audio_buffer.cleared" in bench.kinds() and bench.played == before
    bench.check()


def test_a_short_silence_of_the_client_is_enough_for_a_listeners_word():
    bench = Bench(server_plays=True)
    detection = {"type": "server_vad", "silence_duration_ms": 260}
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    bench.turn()
    bench.say(*["word "] * 20)
    bench.play(1.0)
    bench.hear(0.4, True)
    bench.hear(0.22, False)
    bench.understand("Yeah.")
    bench.hear(0.04, False)
    assert not bench.held and bench.playing and len(bench.started) == 1
    bench.check()


def test_what_the_ears_can_not_judge_in_time_stops_the_reply():
    bench = interrupted_by(None)
    bench.hear(0.5, False)
    assert "output_audio_buffer.cleared" in bench.kinds()
    bench.check()
    bench = Bench(server_plays=True)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    bench.turn(None)
    bench.understand("Tell me a story.")
    bench.hear(0.5, False)
    bench.say(*["word "] * 20)
    bench.play(1.0)
    bench.hear(0.4, True)
    bench.hear(0.48, False)
    assert bench.held
    bench.hear(0.04, False)
    assert "output_audio_buffer.cleared" in bench.kinds(), "also if the turn may go on for long"
    bench.check()
    bench = interrupted_by(None)
    for job in list(bench.jobs):
        del bench.jobs[job]
        bench.take(bench.session.on_text_failed(job, TimeoutError()))
    assert "output_audio_buffer.cleared" in bench.kinds()
    bench.check()


def test_a_long_word_of_a_listener_does_not_stop_the_reply():
    bench = Bench(server_plays=True)
    bench.turn()
    bench.say(*["word "] * 20)
    bench.play(1.0)
    for _ in range(2):
        bench.hear(0.42, True)
        assert bench.held and len(bench.jobs) == 1
        bench.understand("Yeah, yeah.")
        assert bench.held, "nothing is decided before it is quiet"
    bench.hear(0.24, False)
    bench.understand("Yeah, yeah, okay.")
    bench.hear(0.22, False)
    assert bench.held, "a 'but' may follow"
    bench.hear(0.04, False)
    assert not bench.held and bench.playing
    bench.hear(0.02, False)
    assert bench.kinds()[-2:] == ["input_audio_buffer.speech_stopped", "input_audio_buffer.cleared"]
    assert not bench.all("conversation.item.input_audio_transcription.delta")[1:]
    bench.check()


def test_a_reply_that_waits_goes_on_if_it_may_not_be_interrupted_any_more():
    bench = interrupted_by(None)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"interrupt_response": False}}}})
    bench.hear(0.5, False)
    assert not bench.held and bench.playing
    bench.check()


def test_a_listener_who_goes_on_to_speak_stops_the_reply():
    bench = interrupted_by("Yeah.")
    bench.hear(2.2, True)
    assert "output_audio_buffer.cleared" in bench.kinds()
    bench.check()


@pytest.mark.parametrize("server", [False, True])
def test_no_interruption_if_the_client_does_not_want_it(server):
    bench = Bench(server_plays=server)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"interrupt_response": False}}}})
    bench.turn("one")
    bench.say("word ")
    bench.turn("two")
    assert bench.session.replies.live is not None and len(bench.started) == 1
    bench.finish()
    if server:
        bench.play(1)
    assert bench.asked()[-1] == ("user", "two")
    bench.check()


def test_truncating_the_live_reply_stops_it():
    bench = Bench()
    bench.turn()
    bench.say(*["word "] * 10)
    item_id = bench.all("response.output_item.added")[0]["item"]["id"]
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=9999)
    assert bench.error()["param"] == "audio_end_ms"
    assert bench.session.replies.live is not None, "what can't be done changes nothing"
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=600)
    assert bench.done()["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert bench.kinds()[-1] == "conversation.item.truncated"
    assert bench.session.conversation.get(item_id).text().split() == ["word"] * 2
    bench.check()


def test_history_keeps_what_was_spoken_of_a_cancelled_reply():
    bench = manual()
    bench.tell("conversation.item.create", item=message("hello"))
    bench.tell("response.create")
    bench.say(*["word "] * 3)
    assert bench.pushed == 3 * WORD
    bench.tell("response.cancel")
    bench.tell("conversation.item.create", item=message("again"))
    bench.tell("response.create")
    assert bench.asked()[-2][0] == "assistant" and bench.asked()[-2][1].split() == ["word"] * 3


def test_truncation_counts_what_the_client_heard_at_another_speed():
    bench = Bench()
    bench.tell("session.update", session={"audio": {"output": {"speed": 1.5}}})
    bench.turn()
    assert bench.started[-1].request.speed == 1.5
    bench.say(*["word "] * 10)  # it comes as it is heard
    bench.finish()
    item_id = bench.done()["output"][0]["id"]
    heard = bench.pushed // 24
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=heard + 1)
    assert bench.error()["param"] == "audio_end_ms"
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=heard // 2)
    assert bench.events[-1]["audio_end_ms"] == heard // 2
    assert bench.session.conversation.get(item_id).text().split() == ["word"] * 5
