"""The session's ways, one by one."""

from __future__ import annotations

import base64

import pytest

from tests.realtime.bench import WORD, Bench
from voicechat.cascade.api import CallPart, FinishReason, Overloaded, ResultPart, Tool
from voicechat.realtime.settings import SessionConfig


def message(text: str, **more: object) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **more}


def manual(**limits: object) -> Bench:
    return Bench(SessionConfig("Be brief.", "anna", detection=None), **limits)


def test_spoken_turn_in_order():
    bench = Bench()
    bench.turn()
    bench.say("Hi", " there")
    bench.finish()
    assert bench.kinds() == [
        "session.created",
        "conversation.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.created",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.created",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert bench.asked() == [("system", "Be brief."), ("user", "hello")]
    done = bench.done()
    assert done["status"] == "completed"
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hi there"}]
    assert done["usage"]["output_token_details"] == {"text_tokens": 3, "audio_tokens": 4}
    assert done["metadata"]["endpointing_ms"] == "500"
    bench.check()


def test_reply_is_begun_ahead_and_kept_back():
    bench = Bench()
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("hello")
    assert len(bench.started) == 1 and "response.created" not in bench.kinds()
    bench.say("Hi")
    assert "response.created" not in bench.kinds()
    bench.hear(0.3, False)
    assert bench.all("response.output_audio_transcript.delta")[0]["delta"] == "Hi"
    bench.say(" there")
    bench.finish()
    assert bench.done()["output"][0]["content"][0]["transcript"] == "Hi there"
    assert len(bench.started) == 1
    bench.check()


def test_going_on_after_a_pause_voids_what_was_begun():
    bench = Bench()
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("half")
    bench.hear(0.4, True)
    assert bench.cancelled == [1]
    bench.hear(0.6, False)
    bench.understand("the whole")
    bench.say("Yes", generation=1)
    assert "response.output_audio_transcript.delta" not in bench.kinds(), "stale"
    assert bench.asked()[-1] == ("user", "the whole")
    bench.check()


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
    for wrong in (0, -5, 601):
        bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=wrong)
        assert bench.error()["param"] == "audio_end_ms"
    bench.check()


def test_barge_in_where_the_server_plays_truncates_at_what_was_played():
    bench = Bench(server_plays=True)
    bench.turn()
    bench.say(*["word "] * 20)
    bench.play(1.0)
    bench.hear(0.5, True)
    assert bench.held, "quiet while it is not known what this is"
    bench.understand("Stop")
    started = bench.kinds().index("input_audio_buffer.speech_started", 4)
    assert bench.kinds()[started + 1] == "output_audio_buffer.cleared"
    (truncated,) = bench.all("conversation.item.truncated")
    assert truncated["audio_end_ms"] == 1000
    assert bench.session.conversation.get(truncated["item_id"]).text().split() == ["word"] * 4
    assert bench.done()["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    bench.check()


def test_played_reply_ends_with_stopped():
    bench = Bench(server_plays=True)
    bench.turn()
    bench.say("Hi")
    bench.finish()
    bench.play(0.5)
    assert bench.kinds()[-3:] == ["response.done", "output_audio_buffer.started", "output_audio_buffer.stopped"]
    assert bench.session.replies.idle


def test_noise_before_the_reply_only_delays_it():
    bench = Bench()
    bench.turn()
    assert len(bench.all("response.created")) == 1
    bench.hear(0.08, True)
    bench.hear(0.6, False)
    assert [d["response"]["status"] for d in bench.all("response.done")] == ["cancelled"]
    assert len(bench.started) == 2 and bench.asked(0) == bench.asked(1)
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
    bench.hear(0.3, False)
    assert not bench.held
    bench.play(0.2)
    assert bench.played == before + 4800, "on from the very sample"
    assert "output_audio_buffer.cleared" not in bench.kinds()
    bench.hear(1.0, True)
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
    bench.hear(0.1, False)
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
    bench.hear(0.04, False)
    bench.hear(0.32, True)
    assert bench.held, "it is asked again what is being said"
    bench.understand("Okay, but how")
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
    bench.hear(0.1, False)
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
    bench.hear(0.7, True)
    assert "output_audio_buffer.cleared" in bench.kinds()
    bench.check()


def test_manual_mode():
    bench = manual()
    bench.tell("input_audio_buffer.commit")
    assert bench.error()["code"] == "input_audio_buffer_commit_empty"
    assert bench.error()["event_id"] == "mine"
    bench.hear(1.0, True)
    bench.hear(2.0, False)
    assert bench.kinds()[-1] == "error", "nothing happens by itself"
    bench.tell("input_audio_buffer.clear")
    assert bench.kinds()[-1] == "input_audio_buffer.cleared"
    bench.tell("input_audio_buffer.commit")
    assert bench.error()["code"] == "input_audio_buffer_commit_empty"
    bench.hear(1.0, True)
    bench.tell("input_audio_buffer.commit")
    assert "input_audio_buffer.speech_stopped" not in bench.kinds()
    bench.tell("response.create")
    assert bench.kinds()[-2:] == ["response.created", "rate_limits.updated"]
    assert not bench.started, "the ears are not done"
    bench.understand("what time is it")
    assert bench.asked() == [("system", "Be brief."), ("user", "what time is it")]
    bench.say("Late.")
    bench.finish()
    assert bench.done()["status"] == "completed"
    bench.check()


def test_commit_in_the_middle_of_a_detected_turn():
    bench = Bench()
    bench.hear(0.6, True)
    bench.tell("input_audio_buffer.commit")
    bench.understand("hello")
    assert bench.asked()[-1] == ("user", "hello")
    bench.check()


def test_response_codes():
    bench = Bench()
    bench.tell("response.cancel")
    assert bench.error()["code"] == "response_cancel_not_active"
    bench.tell("response.create", response={"instructions": ""})
    bench.tell("conversation.item.create", item=message("hello"))
    bench.tell("response.create")
    bench.tell("response.create")
    assert bench.error()["code"] == "conversation_already_has_active_response"
    bench.say("Hi")
    bench.tell("response.cancel", response_id="other")
    assert bench.error()["code"] == "response_cancel_not_active"
    bench.tell("response.cancel")
    assert bench.done()["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    bench.check()


def test_nothing_to_reply_to():
    bench = Bench(SessionConfig("", "anna"))
    bench.tell("response.create")
    assert bench.error()["code"] == "conversation_empty"


def test_overrides_and_out_of_band():
    bench = Bench()
    bench.tell("conversation.item.create", item=message("hello", id="first"))
    bench.tell(
        "response.create",
        response={
            "conversation": "none",
            "instructions": "Classify.",
            "output_modalities": ["text"],
            "metadata": {"topic": "x"},
            "max_output_tokens": 5,
            "input": [{"type": "item_reference", "id": "first"}, message("and this")],
        },
    )
    request = bench.started[0].request
    assert (request.audio, request.sampling.max_tokens) == (False, 5)
    assert bench.asked() == [("system", "Classify."), ("user", "hello"), ("user", "and this")]
    bench.say("greeting")
    bench.finish(FinishReason.LENGTH)
    done = bench.done()
    assert (done["status"], done["status_details"]["reason"]) == ("incomplete", "max_output_tokens")
    assert done["metadata"]["topic"] == "x" and done["conversation_id"] is None
    assert done["output"][0]["content"] == [{"type": "output_text", "text": "greeting"}]
    assert bench.all("response.content_part.added")[0]["part"]["type"] == "text"
    assert "response.output_text.delta" in bench.kinds() and "response.output_audio.done" not in bench.kinds()
    assert [item.id for item in bench.session.conversation.items] == ["first"], "the conversation does not know of it"
    bench.tell("response.create", response={"input": [{"type": "item_reference", "id": "nope"}]})
    assert bench.error()["code"] == "invalid_item_reference"
    bench.check()


def test_failed_response():
    bench = Bench()
    bench.turn()
    bench.fail(Overloaded("full"))
    assert bench.done()["status"] == "failed"
    assert bench.done()["status_details"]["error"]["code"] == "overloaded"
    bench.turn("again")
    bench.say("Hi")
    bench.finish()
    assert bench.done()["status"] == "completed"
    bench.check()


def test_items():
    bench = Bench()
    bench.tell("conversation.item.create", item=message("b", id="b"))
    bench.tell("conversation.item.create", item=message("a", id="a"), previous_item_id="root")
    bench.tell("conversation.item.create", item=message("c", id="c"), previous_item_id="b")
    bench.tell("conversation.item.create", item=message("b2", id="b2"), previous_item_id="b")
    assert [item.id for item in bench.session.conversation.items] == ["a", "b", "b2", "c"]
    bench.tell("conversation.item.create", item=message("x", id="a"))
    assert bench.error()["code"] == "item_create_duplicate_item_id"
    bench.tell("conversation.item.create", item=message("x"), previous_item_id="zz")
    assert bench.error()["code"] == "item_create_invalid_previous_item_id"
    bench.tell("conversation.item.delete", item_id="b")
    assert bench.events[-1]["type"] == "conversation.item.deleted"
    bench.tell("conversation.item.retrieve", item_id="b")
    assert bench.error()["code"] == "item_retrieve_invalid_item_id"
    bench.tell("conversation.item.retrieve", item_id="c")
    assert bench.events[-1]["item"]["content"] == [{"type": "input_text", "text": "c"}]
    bench.tell("conversation.item.truncate", item_id="c", content_index=0, audio_end_ms=100)
    assert bench.error()["code"] == "item_truncate_invalid_item_id"
    bench.check()


def test_spoken_item_is_transcribed_before_it_is_answered():
    bench = Bench()
    pcm = base64.b64encode(bytes(48_000)).decode()
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": pcm}]}
    bench.tell("conversation.item.create", item=item)
    bench.tell("response.create")
    assert not bench.started
    bench.understand("spoken")
    assert bench.asked()[-1] == ("user", "spoken")
    completed = bench.all("conversation.item.input_audio_transcription.completed")[0]
    assert completed["usage"] == {"type": "duration", "seconds": 1.0}
    bench.check()


def test_function_call_round_trip():
    bench = Bench()
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    bench.tell("session.update", session={"type": "realtime", "tools": [tool]})
    assert bench.events[-1]["session"]["tools"] == [tool]
    bench.tell("conversation.item.create", item=message("weather in Paris?"))
    bench.tell("response.create")
    assert bench.asked()[0] == ("system", "Be brief.")
    assert bench.started[-1].request.tools == (Tool("weather", None, {"type": "object"}),)
    bench.say("<tool", "_call>\n", '{"name": "weather", "arguments": {"city": "Paris"}}\n')
    assert "response.output_item.added" not in bench.kinds()
    bench.say("</tool_call>")
    (call,) = bench.done()["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", '{"city": "Paris"}')
    arguments = bench.all("response.function_call_arguments.done")[0]
    assert arguments["call_id"] == call["call_id"]
    assert bench.done()["status"] == "completed" and bench.pushed == 0, "a call is not spoken"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    bench.tell("conversation.item.create", item=output)
    bench.tell("response.create")
    assert bench.asked()[-2:] == [("assistant", "weather"), ("user", "sunny")]
    told, answered = (asked.parts[0] for asked in bench.started[-1].request.messages[-2:])
    assert told == CallPart(call["call_id"], "weather", '{"city": "Paris"}')
    assert answered == ResultPart(call["call_id"], "sunny")
    bench.say("Sunny.")
    bench.finish()
    assert bench.done()["output"][0]["content"][0]["transcript"] == "Sunny."
    bench.check()


def test_the_result_of_a_call_that_nobody_made():
    bench = Bench()
    output = {"type": "function_call_output", "call_id": "call_x", "output": "sunny"}
    bench.tell("conversation.item.create", item=output)
    wrong = {"code": "invalid_tool_call_id", "message": "Tool call ID 'call_x' not found in conversation."}
    assert bench.error().items() >= {**wrong, "type": "invalid_request_error", "event_id": "mine"}.items()
    bench.tell("response.create", response={"input": [output]})
    assert bench.error()["code"] == "invalid_tool_call_id" and not bench.session.conversation.items
    call = {"type": "function_call", "call_id": "call_x", "name": "look", "arguments": "{}"}
    bench.tell("response.create", response={"input": [call, output], "conversation": "none"})
    assert [text for _, text in bench.asked()[-2:]] == ["look", "sunny"]
    bench.finish()
    bench.tell("conversation.item.create", item=call)
    bench.tell("conversation.item.create", item=output)
    assert [item.type for item in bench.session.conversation.items] == ["function_call", "function_call_output"]
    bench.check()


def test_voice_locks_and_model_stays():
    bench = Bench(SessionConfig("", "anna", model="gpt-realtime"))
    bench.tell("session.update", session={"model": "gpt-realtime", "audio": {"output": {"voice": "ben"}}})
    assert bench.events[-1]["session"]["audio"]["output"]["voice"] == "ben"
    bench.tell("session.update", session={"model": "gpt-5"})
    assert bench.error()["code"] == "cannot_update_model"
    bench.turn()
    bench.say("Hi")
    bench.tell("session.update", session={"audio": {"output": {"voice": "anna"}}})
    assert (bench.error()["code"], bench.error()["param"]) == ("cannot_update_voice", "session.audio.output.voice")


def test_partial_updates():
    bench = Bench()
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"silence_duration_ms": 300}}}})
    detection = bench.events[-1]["session"]["audio"]["input"]["turn_detection"]
    assert (detection["silence_duration_ms"], detection["prefix_padding_ms"]) == (300, 300)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    assert bench.events[-1]["session"]["audio"]["input"]["turn_detection"]["eagerness"] == "auto"
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": None}}, "tracing": "auto"})
    session = bench.events[-1]["session"]
    assert session["audio"]["input"]["turn_detection"] is None
    assert (session["tracing"], session["instructions"]) == ("auto", "Be brief.")
    bench.tell("session.update", session={"audio": {"input": {"transcription": None}}})
    bench.hear(0.5, True)
    bench.tell("input_audio_buffer.commit")
    bench.understand("x")
    assert not [kind for kind in bench.kinds() if "transcription" in kind]


def test_expiry():
    bench = Bench(max_seconds=100, warn_seconds=10)
    bench.turn()
    bench.say("Hi")
    assert not bench.all("session.updated")
    bench.pass_time(89)
    assert bench.events[-1]["type"] == "session.updated", "a warning that ends no client"
    assert bench.events[-1]["session"] == bench.all("session.created")[0]["session"]
    bench.pass_time(5)
    assert len(bench.all("session.updated")) == 1, "warned once"
    assert not bench.all("error")
    bench.pass_time(7)
    assert bench.closed is not None and bench.all("error")[0]["error"]["code"] == "session_expired"
    assert bench.done()["status"] == "cancelled"
    bench.tell("response.create")
    assert bench.kinds()[-1] == "response.done"


def test_idle_timeout():
    config = SessionConfig("", "anna")
    bench = Bench(config)
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}})
    bench.hear(10, False)
    assert "input_audio_buffer.timeout_triggered" not in bench.kinds(), "nobody has spoken yet"
    bench.turn()
    bench.say("Hi")
    bench.finish()
    bench.hear(4, False)
    assert "input_audio_buffer.timeout_triggered" not in bench.kinds()
    bench.hear(2, False)
    triggered = bench.all("input_audio_buffer.timeout_triggered")[0]
    assert triggered["audio_end_ms"] - triggered["audio_start_ms"] == 5000
    assert bench.asked()[-1][1] == "(The user says nothing.)"
    bench.say("Are you there?")
    bench.finish()
    bench.hear(20, False)
    assert len(bench.all("input_audio_buffer.timeout_triggered")) == 1, "once until somebody speaks"
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


def test_deleted_and_truncated_things_are_not_told_to_the_model():
    bench = Bench()
    bench.tell("conversation.item.create", item=message("secret", id="s"))
    bench.tell("conversation.item.delete", item_id="s")
    bench.tell("conversation.item.create", item=message("hello"))
    bench.tell("response.create")
    assert bench.asked() == [("system", "Be brief."), ("user", "hello")]


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


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"type": "\\ud800"}', "invalid_json", None),
        ("[]", "invalid_event", "type"),
        ('{"type": 3}', "invalid_event", "type"),
        ('{"type": "no.such"}', "unknown_event", "type"),
        ('{"type": "session.update"}', "missing_required_parameter", "session"),
        ('{"type": "session.update", "session": []}', "invalid_type", "session"),
        ('{"type": "session.update", "session": {"colour": 1}}', "unknown_parameter", "session.colour"),
        ('{"type": "session.update", "session": {"modalities": ["audio"]}}', "unknown_parameter", "session.modalities"),
        ('{"type": "session.update", "session": {"output_modalities": ["text", "audio"]}}', "invalid_value",
         "session.output_modalities"),
        ('{"type": "session.update", "session": {"audio": {"input": {"format": "pcm16"}}}}', "invalid_type",
         "session.audio.input.format"),
        ('{"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16}}}}}',
         "unsupported_value", "session.audio.input.format.rate"),
        ('{"type": "session.update", "session": {"max_output_tokens": 0}}', "integer_below_min_value",
         "session.max_output_tokens"),
        ('{"type": "session.update", "session": {"tools": [{"type": "mcp"}]}}', "unsupported_value",
         "session.tools[0].type"),
        ('{"type": "session.update", "session": {"audio": {"output": {"speed": NaN}}}}', "invalid_json", None),
        ('{"type": "session.update", "session": {"tracing": {"a": 1e999}}}', "invalid_json", None),
        ('{"type": "session.update", "session": {"audio": {"output": {"speed": 9}}}}', "decimal_above_max_value",
         "session.audio.output.speed"),
        ('{"type": "input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "invalid_audio", "audio"),
        ('{"type": "conversation.item.create", "item": {"type": "message", "role": "user"}}',
         "missing_required_parameter", "item.content"),
        ('{"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": '
         '[{"type": "input_image", "image_url": "data:"}]}}', "unsupported_value", "item.content[0].type"),
        ('{"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": '
         '[{"type": "input_text", "text": 5}]}}', "invalid_type", "item.content[0].text"),
        ('{"type": "conversation.item.create", "item": {"type": "dance"}}', "invalid_value", "item.type"),
        ('{"type": "conversation.item.delete"}', "missing_required_parameter", "item_id"),
        ('{"type": "conversation.item.delete", "item_id": "x"}', "item_delete_invalid_item_id", "item_id"),
        ('{"type": "conversation.item.truncate", "item_id": "x", "content_index": "0", "audio_end_ms": 1}',
         "invalid_type", "content_index"),
        ('{"type": "response.create", "response": {"modalities": ["text"]}}', "unknown_parameter",
         "response.modalities"),
        ('{"type": "response.create", "response": {"metadata": {"a": 1}}}', "invalid_type", "response.metadata.a"),
        ('{"type": "response.create", "response": []}', "invalid_type", "response"),
        ('{"type": "output_audio_buffer.clear"}', "unsupported_event", "type"),
    ],
)  # fmt: skip
def test_wrong_event_names_the_field_and_changes_nothing(text, code, param):
    bench = Bench()
    before = bench.session.config
    bench.raw(text)
    assert (bench.error()["code"], bench.error()["param"]) == (code, param)
    assert bench.session.config == before and not bench.session.conversation.items


def test_close_stops_everything():
    bench = Bench()
    bench.turn()
    bench.say("Hi")
    bench.take(bench.session.close())
    assert not bench.running and not bench.jobs
    assert bench.done()["status"] == "cancelled"
    before = len(bench.events)
    bench.say("late", generation=1)
    bench.hear(1, True)
    bench.tell("response.create")
    assert len(bench.events) == before


def test_truncation_counts_what_the_client_heard_at_another_speed():
    bench = Bench()
    bench.tell("session.update", session={"audio": {"output": {"speed": 1.5}}})
    bench.turn()
    bench.say(*["word "] * 10)
    bench.finish()
    item_id = bench.done()["output"][0]["id"]
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=2001)
    assert bench.error()["param"] == "audio_end_ms"
    bench.tell("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=1000)
    assert bench.events[-1]["audio_end_ms"] == 1000
    assert bench.session.conversation.get(item_id).text().split() == ["word"] * 5
