"""What a client tells a session over its data channel, right and wrong: the session alone."""

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.speech import silence, voice


async def test_client_cancels(make_bench):
    bench = make_bench(DoubleCascade(answer="word " * 20, word_delay=0.1))
    bench.tell("response.cancel")
    assert bench.events[-1]["error"]["code"] == "response_cancel_not_active"
    assert bench.events[-1]["error"]["event_id"] == "event_client"
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.started")
    bench.tell("response.cancel")
    done = bench.all("response.done")[0]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    bench.tell("output_audio_buffer.clear")
    assert bench.all("output_audio_buffer.cleared")
    await bench.run(silence(0.2))
    assert not np.any(bench.sound[-5:])


async def test_typed_message(make_bench):
    bench = make_bench()
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "typed"}]}
    bench.tell("conversation.item.create", item=item)
    bench.tell("response.create")
    await bench.until("output_audio_buffer.started")
    assert bench.asked() == [("system", "Be brief."), ("user", "typed")]
    bench.tell("conversation.item.create", item=item)
    await bench.until("response.done")
    bench.tell("response.create")
    assert bench.all("output_audio_buffer.cleared"), "a new reply silences the old one"
    await bench.until("output_audio_buffer.stopped")


async def test_second_response_at_once_is_refused(make_bench):
    bench = make_bench(DoubleCascade(first_delay=0.5))
    bench.tell("response.create")
    bench.tell("response.create")
    assert bench.events[-1]["error"]["code"] == "conversation_already_has_active_response"


async def test_session_update(make_bench):
    bench = make_bench()
    detection = {"type": "server_vad", "silence_duration_ms": 300, "threshold": 0.7, "interrupt_response": False}
    bench.tell(
        "session.update",
        session={
            "type": "realtime",
            "instructions": "Speak like a pirate.",
            "audio": {"input": {"turn_detection": detection}, "output": {"voice": "ben"}},
            "tracing": "auto",
        },
    )
    session = bench.all("session.updated")[0]["session"]
    assert session["instructions"] == "Speak like a pirate."
    assert session["audio"]["output"]["voice"] == "ben"
    assert session["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 300
    assert session["audio"]["input"]["turn_detection"]["prefix_padding_ms"] == 300, "the rest stays"
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped")
    assert bench.asked()[0] == ("system", "Speak like a pirate.")
    assert bench.cascade.requests[0].voice == "ben"
    assert bench.all("response.done")[0]["response"]["metadata"]["endpointing_ms"] == "300"
    bench.tell("session.update", session={"type": "realtime", "audio": {"output": {"voice": "anna"}}})
    assert bench.events[-1]["error"]["code"] == "cannot_update_voice"


async def test_semantic_vad_and_no_automatic_reply(make_bench):
    bench = make_bench()
    detection = {"type": "semantic_vad", "eagerness": "high", "create_response": False}
    bench.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
    assert bench.all("session.updated")[0]["session"]["audio"]["input"]["turn_detection"]["eagerness"] == "high"
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("conversation.item.input_audio_transcription.completed")
    await bench.run(silence(0.3))
    assert not bench.cascade.requests
    bench.tell("response.create")
    await bench.until("output_audio_buffer.stopped")


@pytest.mark.parametrize(
    ("session", "param", "code"),
    [
        ({"voice": "nobody"}, "session.voice", "invalid_value"),
        ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice", "invalid_value"),
        ({"audio": {"output": {"speed": 1.6}}}, "session.audio.output.speed", "decimal_above_max_value"),
        (
            {"audio": {"input": {"turn_detection": {"threshold": 2}}}},
            "session.audio.input.turn_detection.threshold",
            "decimal_above_max_value",
        ),
        (
            {"audio": {"input": {"turn_detection": {"loudness": 2}}}},
            "session.audio.input.turn_detection.loudness",
            "unknown_parameter",
        ),
        ({"audio": {"speaker": {}}}, "session.audio.speaker", "unknown_parameter"),
        ({"instructions": 5}, "session.instructions", "invalid_type"),
        ({"instructions": "x" * 70_000}, "session.instructions", "string_above_max_length"),
        ({"tools": [{"type": "function"}]}, "session.tools[0].name", "missing_required_parameter"),
        ({"type": "transcription"}, "session.type", "invalid_value"),
        ({"colour": "red"}, "session.colour", "unknown_parameter"),
        ({"max_output_tokens": 0}, "session.max_output_tokens", "integer_below_min_value"),
        ({"output_modalities": ["text", "audio"]}, "session.output_modalities", "invalid_value"),
        ([], "session", "invalid_type"),
    ],
)
async def test_wrong_update_names_the_field_and_changes_nothing(make_bench, session, param, code):
    bench = make_bench()
    bench.tell("session.update", session=session)
    assert (bench.events[-1]["error"]["param"], bench.events[-1]["error"]["code"]) == (param, code)
    assert bench.session.config.voice == "anna"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_event"),
        ("{}", "invalid_event"),
        ('{"type": 3}', "invalid_event"),
        ('{"type": "input_audio_buffer.append", "audio": ""}', "unsupported_event"),
        ('{"type": "conversation.item.create"}', "missing_required_parameter"),
        (
            '{"type": "conversation.item.create", "item": {"type": "message", "role": "user"}}',
            "missing_required_parameter",
        ),
        ('{"type": "response.create", "response": {"colour": 1}}', "unknown_parameter"),
    ],
)
async def test_wrong_event_is_answered(make_bench, text, code):
    bench = make_bench()
    bench.session.on_message(text)
    assert bench.events[-1]["type"] == "error"
    assert bench.events[-1]["error"]["code"] == code


async def test_history_is_bounded(make_bench):
    bench = make_bench()
    for number in range(100):
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": f"{number} " + "x" * 300}],
        }
        bench.tell("conversation.item.create", item=item)
    bench.tell("response.create")
    asked = bench.asked()
    assert sum(len(text) for _, text in asked) < bench.cascade.model.context_tokens * 3
    assert asked[-1][1].startswith("99 ")
    assert asked[0] == ("system", "Be brief.")
