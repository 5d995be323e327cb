"""Items of the conversation: their order, what is told of them, and what the model hears of them."""

from __future__ import annotations

import base64

from tests.realtime.bench import Bench, message


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


def test_deleted_and_truncated_things_are_not_told_to_the_model():
    bench = Bench()
    bench.tell("conversation.item.create", item=message("secret", id="s"))
    bench.tell("conversation.item.delete", item_id="s")
    bench.tell("conversation.item.create", item=message("hello"))
    bench.tell("response.create")
    assert bench.asked() == [("system", "Be brief."), ("user", "hello")]
