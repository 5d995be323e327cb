"""Client events with anything at all in any field: answered by events, never by an exception."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.realtime.bench import Bench

ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "id": "a", "content": [{"type": "input_text", "text": "hello"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "AAAA", "transcript": "x"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
    {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "hello"}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "nothing"},
]
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
DETECTION = {
    "type": "server_vad", "threshold": 0.4, "prefix_padding_ms": 100, "silence_duration_ms": 200,
    "idle_timeout_ms": 5000, "create_response": True, "interrupt_response": False, "eagerness": "low",
}  # fmt: skip
SESSION = {
    "type": "realtime", "model": "gpt-realtime", "instructions": "Be brief.", "output_modalities": ["audio"],
    "max_output_tokens": 100, "tools": [TOOL], "tool_choice": {"type": "function", "name": "look"},
    "tracing": {"workflow_name": "x"}, "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
    "include": [], "prompt": None, "reasoning": {"effort": "low"}, "parallel_tool_calls": True,
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000}, "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "whisper-1"}, "turn_detection": DETECTION,
        },
        "output": {"format": {"type": "audio/pcmu"}, "voice": "marin", "speed": 1.2},
    },
}  # fmt: skip
RESPONSE = {
    "conversation": "none", "instructions": "Go.", "output_modalities": ["text"], "max_output_tokens": "inf",
    "metadata": {"a": "b"}, "tools": [TOOL], "tool_choice": "auto", "input": ITEMS,
    "audio": {"output": {"format": {"type": "audio/pcm"}, "voice": {"id": "ben"}}},
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"type": "session.update", "event_id": "e", "session": SESSION},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    *({"type": "conversation.item.create", "item": item, "previous_item_id": "root"} for item in ITEMS),
    {"type": "conversation.item.delete", "item_id": "a"},
    {"type": "conversation.item.retrieve", "item_id": "a"},
    {"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "audio_end_ms": 100},
    {"type": "response.create", "response": RESPONSE},
    {"type": "response.cancel", "response_id": "r"},
]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["audio", "text", "none", "function", "message", "a", "root", "=", "\ud800", "audio/pcmu"])
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner), max_leaves=6
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value can be replaced."""
    inner: list[tuple[Any, ...]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        inner += [(*path, key), *paths(part, (*path, key))]
    return inner


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A client event with up to three fields replaced, removed or added."""
    event = copy.deepcopy(draw(st.sampled_from(EVENTS)))
    for _ in range(draw(st.integers(0, 3))):
        places = paths(event)
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        place = event
        for key in way:
            place = place[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                place[last] = draw(JSON)
            case "remove":
                del place[last]
            case "add" if isinstance(place, dict):
                place[draw(st.text(max_size=6))] = draw(JSON)
    return json.dumps(event)


@settings(max_examples=300, deadline=None)
@given(st.lists(mutated() | JSON.map(json.dumps) | st.text(max_size=20), max_size=12), st.booleans())
def test_no_event_breaks_the_session(texts: list[str], server: bool) -> None:
    bench = Bench(server_plays=server)
    for text in texts:
        before = len(bench.events)
        bench.raw(text)
        answered = len(bench.events) > before or "output_audio_buffer.clear" in text
        assert answered, "only clearing what is empty has no answer"
        bench.understand("heard")
        if bench.running:
            bench.say("word ")
    bench.check()
    bench.take(bench.session.close())
    bench.check()
