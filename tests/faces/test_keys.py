"""Keys of a file: what they open, how they are made and revoked, and what is wrong with a file."""

from __future__ import annotations

import stat
from pathlib import Path

import openai
import pytest
from aiohttp import ClientSession, WSServerHandshakeError
from openai import AsyncOpenAI

from voicechat.faces.app import KEYS, FaceSettings
from voicechat.faces.keys import (
    Key,
    KeyLimits,
    KeyRing,
    KeysError,
    add_key,
    digest_of,
    face_of,
    new_token,
    read_keys,
    revoke_key,
)
from voicechat.keys_command import main as keys_main

CHAT = {"model": "fake-voice", "messages": [{"role": "user", "content": "Hello"}]}


def _file(tmp_path: Path, *keys: Key) -> Path:
    file = tmp_path / "keys.yaml"
    for key in keys:
        add_key(file, key)
    return file


def _client(url: object, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_a_file_keeps_digests_only_and_is_its_owners(tmp_path: Path) -> None:
    token = new_token()
    limits = KeyLimits(requests_per_minute=3, replies=2)
    file = _file(tmp_path, Key("ann", digest_of(token), ("chat",), ("m",), 2_000_000_000.0, limits))
    assert token not in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_keys(file) == [Key("ann", digest_of(token), ("chat",), ("m",), 2_000_000_000.0, limits)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("keys: 5", "a list"),
        ("- x", "a mapping"),
        ("keys: [{sha256: aa}]", "'name' is missing"),
        ("keys: [{name: a, sha256: xyz}]", "64 hexadecimal digits"),
        (f"keys: [{{name: a, sha256: '{'0' * 64}', faces: [dance]}}]", "no face 'dance'"),
        (f"keys: [{{name: a, sha256: '{'0' * 64}', limits: {{replies: 0}}}}]", "above 0"),
        (f"keys: [{{name: a, sha256: '{'0' * 64}', expires: soon}}]", "is not a time"),
        (f"keys: [{{name: a, sha256: '{'0' * 64}', colour: red}}]", "unknown field 'colour'"),
        (f"keys: [{{name: a, sha256: '{'0' * 64}'}}, {{name: a, sha256: '{'1' * 64}'}}]", "there twice"),
        ("keys: [", "keys.yaml"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(KeysError, match=complaint):
        read_keys(file)


def test_keys_expire(tmp_path: Path) -> None:
    now = [100.0]
    ring = KeyRing(file=_file(tmp_path, Key("ann", digest_of("t"), expires=200.0)), clock=lambda: now[0])
    assert ring.find("t") is not None
    now[0] = 200.0
    assert ring.find("t") is None


def test_an_empty_file_opens_for_nobody(tmp_path: Path) -> None:
    assert not KeyRing(file=tmp_path / "none.yaml")
    (tmp_path / "keys.yaml").write_text("keys: []", encoding="utf-8")
    assert KeyRing(file=tmp_path / "keys.yaml")


def test_a_file_that_vanishes_does_not_open_the_server(tmp_path: Path) -> None:
    file = _file(tmp_path, Key("ann", digest_of("t")))
    ring = KeyRing(file=file)
    file.unlink()
    assert ring and ring.find("t") is not None and ring.find("x") is None
    with pytest.raises(KeysError, match="is gone"):
        ring.reload()
    assert ring.find("t") is not None


def test_a_file_that_comes_later_is_heeded(tmp_path: Path) -> None:
    ring = KeyRing(file=tmp_path / "keys.yaml")
    assert not ring
    _file(tmp_path, Key("ann", digest_of("t")))
    ring.reload()
    assert ring and ring.find("t") is not None


def test_every_address_that_costs_something_has_a_face() -> None:
    assert face_of("/v1/audio/speech") == "speech"
    assert face_of("/v1/audio/transcriptions") == "transcriptions"
    assert face_of("/v1/realtime/calls") == face_of("/v1/realtime") == "realtime"
    assert face_of("/v1/models") is face_of("/healthz") is None


async def test_what_a_key_is_for(serve, tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        Key("talker", digest_of("t"), ("chat",)),
        Key("other", digest_of("o"), models=("another-model",)),
    )
    url = await serve(FaceSettings(keys_file=file))
    await _client(url, "t").chat.completions.create(**CHAT)
    with pytest.raises(openai.PermissionDeniedError, match="it is for: chat"):
        await _client(url, "t").audio.speech.create(model="fake-voice", voice="ann", input="Hi.")
    with pytest.raises(openai.PermissionDeniedError, match="may not use the model 'fake-voice'"):
        await _client(url, "o").chat.completions.create(**CHAT)
    assert (await _client(url, "o").models.list()).data[0].id == "fake-voice"
    with pytest.raises(openai.AuthenticationError):
        await _client(url, "x").chat.completions.create(**CHAT)


async def test_a_revoked_key_is_forgotten_when_the_file_is_read_again(serve, served_app, tmp_path: Path) -> None:
    file = _file(tmp_path, Key("ann", digest_of("t")))
    url = await serve(FaceSettings(keys_file=file))
    await _client(url, "t").chat.completions.create(**CHAT)
    file.write_text("keys: []", encoding="utf-8")
    served_app()[KEYS].reload()
    with pytest.raises(openai.AuthenticationError):
        await _client(url, "t").chat.completions.create(**CHAT)
    file.write_text("keys: 5", encoding="utf-8")
    with pytest.raises(KeysError):
        served_app()[KEYS].reload()


async def test_requests_beyond_the_limit_are_refused_with_429(serve, tmp_path: Path) -> None:
    file = _file(tmp_path, Key("ann", digest_of("t"), limits=KeyLimits(requests_per_minute=2)))
    url = await serve(FaceSettings(keys_file=file))
    client = _client(url, "t")
    raw = await client.chat.completions.with_raw_response.create(**CHAT)
    assert raw.headers["x-ratelimit-limit-requests"] == "2"
    assert raw.headers["x-ratelimit-remaining-requests"] == "1"
    assert raw.headers["x-ratelimit-reset-requests"].endswith("s")
    await client.chat.completions.create(**CHAT)
    with pytest.raises(openai.RateLimitError, match="Rate limit reached for key 'ann' on requests per min") as error:
        await client.chat.completions.create(**CHAT)
    assert error.value.code == "rate_limit_exceeded"
    assert 1 <= int(error.value.response.headers["retry-after"]) <= 30
    await client.models.list()  # a look costs nothing


async def test_sound_is_paid_for_when_it_was_said(serve, tmp_path: Path) -> None:
    file = _file(tmp_path, Key("ann", digest_of("t"), limits=KeyLimits(audio_seconds_per_minute=0.05)))
    client = _client(await serve(FaceSettings(keys_file=file)), "t")
    asked = {"model": "fake-voice", "voice": "ann", "response_format": "pcm"}
    await client.audio.speech.create(input="Four words are said.", **asked)
    with pytest.raises(openai.RateLimitError, match="seconds of audio per min"):
        await client.audio.speech.create(input="More.", **asked)


async def test_who_is_beyond_its_limit_takes_nothing_from_the_others(serve, tmp_path: Path) -> None:
    greedy = Key("greedy", digest_of("g"), limits=KeyLimits(requests_per_minute=1))
    file = _file(tmp_path, greedy, Key("ann", digest_of("a")))
    url = await serve(FaceSettings(keys_file=file, limits=KeyLimits(requests_per_minute=3)))
    await _client(url, "g").chat.completions.create(**CHAT)
    for _ in range(5):
        with pytest.raises(openai.RateLimitError, match="key 'greedy'"):
            await _client(url, "g").chat.completions.create(**CHAT)
    await _client(url, "a").chat.completions.create(**CHAT)


async def test_a_client_secret_ends_with_its_key(serve, served_app, tmp_path: Path) -> None:
    file = _file(tmp_path, Key("ann", digest_of("t")), Key("ben", digest_of("b")))
    url = await serve(FaceSettings(keys_file=file))
    async with ClientSession() as http:
        made = await http.post(f"{url}/v1/realtime/client_secrets", headers={"Authorization": "Bearer t"}, json={})
        secret = {"Authorization": f"Bearer {(await made.json())['value']}"}
        async with http.ws_connect(f"{url}/v1/realtime?model=fake-voice", headers=secret):
            pass
        revoke_key(file, "ann")
        served_app()[KEYS].reload()
        with pytest.raises(WSServerHandshakeError) as refused:
            await http.ws_connect(f"{url}/v1/realtime?model=fake-voice", headers=secret)
        assert refused.value.status == 401


async def test_limits_of_all_callers_together(serve) -> None:
    url = await serve(FaceSettings(limits=KeyLimits(requests_per_minute=1)))
    async with ClientSession() as http:
        first = await http.post(f"{url}/v1/chat/completions", json=CHAT)
        second = await http.post(f"{url}/v1/chat/completions", json=CHAT)
        assert (first.status, second.status) == (200, 429)
        assert "all callers" in (await second.json())["error"]["message"]


def test_the_command_adds_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    from voicechat.keys_command import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    file = str(tmp_path / "k" / "keys.yaml")

    def run(*words: str) -> int:
        return keys_main(parser.parse_args(["--file", file, *words]))

    assert run("add", "ann", "--faces", "chat", "realtime", "--days", "2", "--sessions", "3") == 0
    token = capsys.readouterr().out.strip()
    key = KeyRing(file=Path(file)).find(token)
    assert key is not None and key.faces == ("chat", "realtime") and key.limits.sessions == 3
    assert run("add", "ann") == 1
    assert "already" in capsys.readouterr().err
    assert run("list") == 0
    shown = capsys.readouterr().out
    assert "ann" in shown and "sessions=3" in shown and token not in shown
    assert run("revoke", "ann") == 0
    assert run("revoke", "ann") == 1
    assert KeyRing(file=Path(file)).find(token) is None
