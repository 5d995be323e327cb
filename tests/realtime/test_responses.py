"""Responses that a client asks for, what they are made from, and how they end."""

from __future__ import annotations

from tests.realtime.bench import Bench, message
from voicechat.contract.errors import Overloaded
from voicechat.contract.events import FinishReason
from voicechat.contract.requests import CallPart, ResultPart, Tool
from voicechat.realtime.settings import SessionConfig


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
    assert bench.done()["status_details"]["error"]["code"] == "rate_limit_exceeded"
    bench.turn("again")
    bench.say("Hi")
    bench.finish()
    assert bench.done()["status"] == "completed"
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
