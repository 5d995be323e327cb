"""``/v1/voices``, and which voice a name means."""

from __future__ import annotations

import dataclasses
import json

import pytest
from aiohttp import ClientSession
from openai import AsyncOpenAI

from voicechat.faces.errors import ApiError
from voicechat.faces.fields import Fields
from voicechat.faces.voices import read_voice, voice_object
from voicechat.models.embedded.weights import FORMAT, VoiceConfig
from voicechat.realtime.settings import PRESET_VOICES

KNOWN = {"bob": {"name": "Bobby", "description": "A calm voice", "gender": "male", "language": "en-GB"}}


@pytest.fixture(autouse=True)
def _known(cascade) -> None:
    cascade.model = dataclasses.replace(cascade.model, about=KNOWN)


@pytest.mark.parametrize("path", ["/v1/voices", "/v1/audio/voices"])
async def test_the_list(url: str, http: ClientSession, path: str) -> None:
    async with http.get(f"{url}{path}") as reply:
        assert reply.status == 200
        body = await reply.json()
    assert body["object"] == "list"
    assert body["data"] == body["voices"]
    assert (body["first_id"], body["last_id"], body["has_more"]) == ("ann", "bob", False)
    ann, bob = body["data"]
    assert ann == {
        "id": "ann",
        "object": "voice",
        "created_at": 1_700_000_000,
        "model": "fake-voice",
        "default": True,
        "name": "Ann",
    }
    assert bob == {**ann, "id": "bob", "default": False, **KNOWN["bob"]}


async def test_the_default_voice_comes_first(url: str, http: ClientSession, cascade) -> None:
    cascade.model = dataclasses.replace(cascade.model, default_voice="bob")
    async with http.get(f"{url}/v1/voices") as reply:
        assert [voice["id"] for voice in (await reply.json())["data"]] == ["bob", "ann"]


async def test_one_voice(url: str, http: ClientSession, cascade) -> None:
    async with http.get(f"{url}/v1/voices/bob") as reply:
        assert (reply.status, await reply.json()) == (200, voice_object(cascade.model, "bob"))


@pytest.mark.parametrize("name", ["nobody", "ann/", "alloy", "ä"])
async def test_a_voice_that_is_not_there(url: str, http: ClientSession, name: str) -> None:
    async with http.get(f"{url}/v1/voices/{name}") as reply:
        assert reply.status == 404
        error = (await reply.json())["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "voice", "voice_not_found")
    assert name in error["message"]


def test_every_preset_name_means_a_voice(cascade) -> None:
    means = [read_voice(Fields({"voice": name}), cascade.model) for name in PRESET_VOICES]
    assert means[:2] == ["ann", "bob"]
    assert set(means) == {"ann", "bob"}
    assert read_voice(Fields({"voice": {"id": "bob"}}), cascade.model) == "bob"


@pytest.mark.parametrize(
    ("voice", "param", "code"),
    [
        (None, "voice", "missing_required_parameter"),
        ({}, "voice.id", "missing_required_parameter"),
        ({"id": 5}, "voice.id", "invalid_type"),
        ({"id": "carl"}, "voice.id", "invalid_value"),
        ({"id": "ann", "x": 1}, "voice.x", "unknown_parameter"),
        ("carl", "voice", "invalid_value"),
        ("", "voice", "invalid_value"),
        (["ann"], "voice", "invalid_type"),
    ],
)
def test_what_is_no_voice(cascade, voice: object, param: str, code: str) -> None:
    with pytest.raises(ApiError) as error:
        read_voice(Fields({"voice": voice}), cascade.model)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)


def test_what_is_known_of_voices_is_kept_in_the_file() -> None:
    config = VoiceConfig(about=KNOWN)
    assert VoiceConfig.from_json(config.to_json()).about == KNOWN
    assert "about" not in json.loads(VoiceConfig().to_json())
    assert VoiceConfig.from_json(VoiceConfig().to_json()).about == {}
    for wrong in ([], {"ann": "x"}, {"ann": {"age": "7"}}, {"ann": {"name": 7}}):
        with pytest.raises(ValueError, match="about"):
            VoiceConfig.from_json(json.dumps({"format": FORMAT, "about": wrong}))


async def test_chat_takes_preset_names_too(client: AsyncOpenAI, cascade) -> None:
    for name, means in (("alloy", "ann"), ("ash", "bob"), ("bob", "bob")):
        await client.chat.completions.create(
            model="fake-voice",
            messages=[{"role": "user", "content": "Hello"}],
            modalities=["text", "audio"],
            audio={"voice": name, "format": "wav"},
        )
        assert cascade.responses[-1].request.voice == means
