"""Whatever is wrong with a chat request is told in OpenAI's shape, with the name of the field."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.images import base64_bytes
from voicechat.faces.chat_request import ChatRequest, parse_chat
from voicechat.faces.errors import ApiError
from voicechat.media.wav import encode_wav

MODEL = ModelInfo("fake-voice", ("ann", "bob"), "ann", False, 4096, 1_700_000_000)
USER = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
WAV = base64.b64encode(encode_wav(np.zeros(2_400, np.int16), 24_000)).decode()
LONG = base64.b64encode(encode_wav(np.zeros(24_000 * 61, np.int16), 24_000)).decode()


def user(*parts: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def sound(data: object, fmt: object = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": fmt}}


def spoken(**audio: object) -> dict[str, Any]:
    return {"modalities": ["text", "audio"], "audio": audio}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 7}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": USER * 3_000}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [*USER, {"content": "x"}]}, "messages[1].role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 3, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "tool", "tool_call_id": "1"}]}, "messages[0].content"),
    (
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": [{"type": "input_audio"}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
    ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": "x", "audio": {"id": "a"}}]}, "messages[0].audio"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls[0].type",
    ),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages[0].content"),
    (
        {"messages": [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]},
        "messages[0].function_call",
    ),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
    ({"messages": [{"role": "assistant", "audio": {}}]}, "messages[0].audio.id"),
    ({"messages": [{"role": "assistant", "audio": {"id": 5}}]}, "messages[0].audio.id"),
    ({"messages": [{"role": "assistant", "audio": "x"}]}, "messages[0].audio"),
    ({"messages": [{"role": "assistant", "audio": {"id": "gone"}}]}, "messages[0].audio.id"),
    ({"messages": [{"role": "assistant", "content": [sound(WAV)]}]}, "messages[0].content[0].input_audio"),
    ({"messages": [{"role": "system", "content": [sound(WAV)]}]}, "messages[0].content[0].input_audio"),
    (user("hi"), "messages[0].content[0]"),
    (user({"text": "hi"}), "messages[0].content[0].type"),
    (user({"type": "song", "text": "hi"}), "messages[0].content[0].type"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "text", "text": 5}), "messages[0].content[0].text"),
    (user({"type": "text", "text": "a", "size": 1}), "messages[0].content[0].size"),
    (user({"type": "refusal", "refusal": "no"}), "messages[0].content[0].refusal"),
    (user({"type": "image_url", "image_url": {"url": "data:,"}}), "messages[0].content[0].image_url"),
    (user({"type": "file", "file": {"file_id": "f"}}), "messages[0].content[0].file"),
    (user({"type": "input_audio"}), "messages[0].content[0].input_audio"),
    (user({"type": "input_audio", "input_audio": "x"}), "messages[0].content[0].input_audio"),
    (user({"type": "input_audio", "input_audio": {"format": "wav"}}), "messages[0].content[0].input_audio.data"),
    (user({"type": "input_audio", "input_audio": {"data": WAV}}), "messages[0].content[0].input_audio.format"),
    (user(sound(WAV, "ogg")), "messages[0].content[0].input_audio.format"),
    (user(sound(WAV, 5)), "messages[0].content[0].input_audio.format"),
    (user(sound(5)), "messages[0].content[0].input_audio.data"),
    (user({"type": "text", "text": "x"}, sound("")), "messages[0].content[1].input_audio.data"),
    (user({"type": "text", "text": "x"}, sound("!!!!")), "messages[0].content[1].input_audio.data"),
    (user(sound(f"data:audio/wav;base64,{WAV}")), "messages[0].content[0].input_audio.data"),
    (user(sound(WAV[:40] + "\n" + WAV[40:])), "messages[0].content[0].input_audio.data"),
    (user(sound("AAAA" * 100)), "messages[0].content[0].input_audio.data"),
    (user(sound(WAV, "mp3")), "messages[0].content[0].input_audio.data"),
    (user(sound(LONG)), "messages[0].content[0].input_audio.data"),
    (
        user(sound(base64.b64encode(encode_wav(np.zeros(0, np.int16), 24_000)).decode())),
        "messages[0].content[0].input_audio.data",
    ),
    ({"modalities": "audio"}, "modalities"),
    ({"modalities": []}, "modalities"),
    ({"modalities": ["text", "text"]}, "modalities"),
    ({"modalities": ["text", "video"]}, "modalities[1]"),
    ({"modalities": [5]}, "modalities[0]"),
    ({"modalities": ["text", "audio"]}, "audio"),
    ({"audio": {"voice": "ann", "format": "wav"}}, "audio"),
    ({"modalities": ["audio"], "audio": "loud"}, "audio"),
    (spoken(format="wav"), "audio.voice"),
    (spoken(voice="ann"), "audio.format"),
    (spoken(voice="eve", format="wav"), "audio.voice"),
    (spoken(voice=5, format="wav"), "audio.voice"),
    (spoken(voice={"id": "eve"}, format="wav"), "audio.voice.id"),
    (spoken(voice={"name": "ann"}, format="wav"), "audio.voice.name"),
    (spoken(voice="ann", format="midi"), "audio.format"),
    (spoken(voice="ann", format="wav", speed=2), "audio.speed"),
    ({**spoken(voice="ann", format="wav"), "stream": True}, "audio.format"),
    ({**spoken(voice="ann", format="mp3"), "stream": True}, "audio.format"),
    ({"latency_first": "yes"}, "latency_first"),
    ({"include_details": 1}, "include_details"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 5_000}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": []}, "top_p"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": "x" * 300}, "stop"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"user": 5}, "user"),
    ({"store": "x"}, "store"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"a": 5}}, "metadata.a"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {"a" * 65: "x"}}, "metadata"),
    ({"metadata": {str(k): "x" for k in range(17)}}, "metadata"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL] * 129}, "tools"),
    ({"tools": [TOOL], "tool_choice": "often"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": -1}, "presence_penalty"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"colour": "red"}, "colour"),
    ({"": "red"}, ""),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[f"{i}-{param}" for i, (_, param) in enumerate(BAD)])
async def test_bad_fields_are_named(url: str, http: ClientSession, cascade, fields: dict[str, Any], param: str) -> None:
    body = {"model": "fake-voice", "messages": USER, **fields}
    async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
        error = (await reply.json())["error"]
        assert reply.status == 400, error
        assert reply.content_type == "application/json"
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["code"]
    assert len(error["message"]) < 400
    assert cascade.responses == []


async def test_messages_say_what_is_wrong(url: str, http: ClientSession) -> None:
    expected = {
        "Unrecognized request argument supplied: colour": {"colour": 1},
        "Invalid type for 'temperature': expected a decimal, but got a string instead.": {"temperature": "hot"},
        "Missing required parameter: 'messages'.": {"messages": None},
        "Invalid value: 'eve'. Supported values are: 'ann', 'bob'.": spoken(voice="eve", format="wav"),
        "Unsupported value: 'audio.format' does not support 'wav' when stream=true. Use 'pcm16' instead.": {
            **spoken(voice="ann", format="wav"),
            "stream": True,
        },
        "Invalid content type: 'image_url' is not supported, because this model can't see.": user(
            {"type": "image_url", "image_url": {"url": "x"}}
        ),
    }
    for message, fields in expected.items():
        body = {"model": "fake-voice", "messages": USER, **fields}
        async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
            assert (await reply.json())["error"]["message"] == message


async def test_an_unknown_model(url: str, http: ClientSession) -> None:
    async with http.post(f"{url}/v1/chat/completions", json={"model": "gpt-4o", "messages": USER}) as reply:
        assert reply.status == 404
        error = (await reply.json())["error"]
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert "gpt-4o" in error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"model": "x"' + b" " * 100_000]
)
async def test_malformed_json(url: str, http: ClientSession, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("body", ["[]", '"x"', "5", "null"])
async def test_json_that_is_no_object(url: str, http: ClientSession, body: str) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as reply:
        assert reply.status == 400
        assert "object" in (await reply.json())["error"]["message"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_other_content_types(url: str, http: ClientSession, content_type: str) -> None:
    async with http.post(
        f"{url}/v1/chat/completions", data=json.dumps({}), headers={"Content-Type": content_type}
    ) as reply:
        assert reply.status == 415
        assert (await reply.json())["error"]["code"] == "unsupported_content_type"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "messages modalities audio stream stream_options stop metadata tools n logit_bias temperature seed max_tokens model"
)
names = st.sampled_from(NAMES.split())


def refusal(body: dict[str, Any]) -> ApiError | None:
    """The error that ``body`` earns; any other exception is a failure of the test."""
    try:
        chat = parse_chat(body, MODEL, lambda _: None)
    except ApiError as error:
        return error
    assert isinstance(chat, ChatRequest)
    return None


@settings(max_examples=300, deadline=None)
@given(fields=st.dictionaries(names, json_values, max_size=4))
def test_any_value_is_taken_or_refused_by_name(fields: dict[str, Any]) -> None:
    body = {"model": "fake-voice", "messages": USER, **fields}
    error = refusal(body)
    if error is not None:
        assert error.status in (400, 404)
        assert error.param is not None
        assert error.param.split(".")[0].split("[")[0] in body


@settings(max_examples=200, deadline=None)
@given(
    message=st.dictionaries(st.sampled_from(["role", "content", "audio", "refusal", "name"]), json_values, max_size=4)
)
def test_any_message_is_taken_or_refused_by_name(message: dict[str, Any]) -> None:
    body = {"model": "fake-voice", "messages": [{"role": "assistant", **message}]}
    error = refusal(body)
    assert error is None or (error.param or "").startswith("messages[0]")


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=600_000))
def test_base64_in_steps(data: bytes) -> None:
    assert base64_bytes(base64.b64encode(data).decode()) == data


@pytest.mark.parametrize(
    "text", ["A", "AB", "ABC", "AB=A", "=AAA", "AAA=AAAA", "AAAA\n", "AA A", "A-_A", "ÄAAA", "===="]
)
def test_what_is_no_base64(text: str) -> None:
    with pytest.raises(ValueError):
        base64_bytes(text)
