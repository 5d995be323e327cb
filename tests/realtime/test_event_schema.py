"""The schema of the protocol and the session agree: what it allows is read, what it forbids is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import voicechat.realtime
from tests.protocol import SERVER
from tests.realtime.bench import MODEL, Bench
from tests.realtime.test_malformed import EVENTS, mutated
from voicechat.contract.cascade import ModelInfo
from voicechat.realtime.event_schema import client_events, protocol_schema
from voicechat.realtime.open_turn import TRANSCRIPTION

SEEING = replace(MODEL, sees=True)
CLIENT, SEEING_CLIENT = (
    {kind: Draft202012Validator(schema) for kind, schema in client_events(model).items()} for model in (MODEL, SEEING)
)
SHAPES = (
    "unknown_parameter", "invalid_type", "missing_required_parameter", "unknown_event", "string_above_max_length",
    "integer_above_max_value", "integer_below_min_value", "decimal_above_max_value", "decimal_below_min_value",
    "invalid_event",
)  # fmt: skip
"""Codes of what is wrong with the shape of an event, and not with what it asks for."""


def errors_of(text: str, model: ModelInfo = MODEL) -> list[dict[str, Any]]:
    """What a session says to an event."""
    bench = Bench(server_plays=True, model=model)
    before = len(bench.events)
    bench.raw(text)
    return [event["error"] for event in bench.events[before:] if event["type"] == "error"]


@settings(max_examples=300, deadline=None)
@given(mutated(), st.booleans())
@example(json.dumps({"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "x"}]}}), True)
def test_what_the_schema_says_of_an_event_the_session_does(text: str, sees: bool) -> None:
    try:
        json.loads(text, parse_constant=lambda _: 1 / 0)
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except (ValueError, ArithmeticError):
        return  # no JSON that one could send
    event = json.loads(text)
    known = SEEING_CLIENT if sees else CLIENT
    validator = known.get(event.get("type")) if isinstance(event.get("type"), str) else None
    errors = errors_of(text, SEEING if sees else MODEL)
    if validator is None:
        assert errors
    elif validator.is_valid(event):
        assert not [error for error in errors if error["code"] in SHAPES], text
    else:
        assert errors, (text, [error.message for error in validator.iter_errors(event)])


def test_the_clients_events_are_all_there() -> None:
    assert {event["type"] for event in EVENTS} == CLIENT.keys()
    for event in EVENTS:
        if "input_image" not in json.dumps(event):  # which this model can't see
            CLIENT[event["type"]].validate(strip(event))


def strip(event: dict[str, Any]) -> dict[str, Any]:
    """Without images among the items of a response."""
    if event["type"] == "response.create":
        kept = [item for item in event["response"]["input"] if "input_image" not in json.dumps(item)]
        return {**event, "response": {**event["response"], "input": kept}}
    return event


def test_every_event_that_the_code_sends_is_described() -> None:
    sent = set()
    root = Path(voicechat.realtime.__file__).parent
    for path in [*root.glob("*.py"), *(root.parent / "faces").glob("realtime*.py")]:
        if path.name == "event_schema.py":
            continue
        source = path.read_text(encoding="utf-8").replace("{TRANSCRIPTION}", TRANSCRIPTION)
        sent |= set(re.findall(r'(?:send|event)\(\s*f?"([a-z_.{}]+)"', source))
        sent |= set(re.findall(r'"(response\.[a-z_]+\.delta)"', source))
    sent.remove("conversation.item.{kind}")
    sent -= {kind for kind in sent if "." not in kind and kind != "error"}
    assert len(sent) > 25
    assert sent <= SERVER.keys(), sent - SERVER.keys()


def test_the_whole_is_one_schema() -> None:
    schema = protocol_schema(MODEL)
    Draft202012Validator.check_schema(schema)
    one = Draft202012Validator(schema)
    one.validate({"type": "input_audio_buffer.commit"})
    one.validate({"type": "input_audio_buffer.cleared", "event_id": "event_1"})
    with pytest.raises(Exception, match="not valid"):
        one.validate({"type": "input_audio_buffer.cleared"})
