"""Client events that are wrong: each is answered by an error that names the field."""

from __future__ import annotations

import pytest

from tests.realtime.bench import Bench


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
