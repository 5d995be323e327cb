"""Signed files through the faces: those that are whole are signed where a certificate is set, and nothing else is."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession
from openai import AsyncOpenAI

from tests.certificates import papers
from tests.faces.conftest import FakeCascade
from voicechat.contract.errors import StageFailed
from voicechat.contract.provenance import Credential
from voicechat.faces.app import FaceSettings
from voicechat.media.encode import FORMATS
from voicechat.watermark.manifest import MIME_TYPES, Signer, read_credential

Serve = Callable[..., Awaitable[str]]
ASK: dict[str, Any] = {"model": "fake-voice", "messages": [{"role": "user", "content": "hello"}]}
SPEECH: dict[str, Any] = {"model": "fake-voice", "voice": "bob", "input": "one two three"}


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    made = papers(tmp_path_factory.mktemp("papers"))
    return Signer.load(made.certificate, made.private_key, "es256", model="fake-voice", payload=0x2F3A)


def credential(data: bytes, folder: Path) -> Credential:
    path = folder / "reply"
    path.write_bytes(data)
    return read_credential(path)


async def chat(url: str, fmt: str) -> bytes:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        reply = await client.chat.completions.create(
            **ASK, modalities=["text", "audio"], audio={"voice": "bob", "format": fmt}
        )
    return base64.b64decode(reply.choices[0].message.audio.data)


async def speech(url: str, fmt: str, **options: Any) -> bytes:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return (await client.audio.speech.create(**SPEECH, response_format=fmt, **options)).content


@pytest.mark.parametrize("fmt", FORMATS)
async def test_whole_replies(serve: Serve, signer: Signer, tmp_path: Path, fmt: str) -> None:
    found = credential(await chat(await serve(FaceSettings(signer=signer)), fmt), tmp_path)
    if fmt not in MIME_TYPES:
        assert found.state == "not_present"
        return
    assert (found.state, found.model, found.watermark, found.generated) == ("valid", "fake-voice", 0x2F3A, True)


@pytest.mark.parametrize("fmt", ["wav", "mp3", "flac", "opus"])
async def test_speech_is_signed_if_that_is_set(serve: Serve, signer: Signer, tmp_path: Path, fmt: str) -> None:
    plain = await serve(FaceSettings(signer=signer))
    assert credential(await speech(plain, fmt), tmp_path).state == "not_present"
    signs = await serve(FaceSettings(signer=signer, sign_speech=True))
    state = "valid" if fmt in MIME_TYPES else "not_present"
    assert credential(await speech(signs, fmt), tmp_path).state == state


async def test_nothing_is_signed_without_a_certificate(serve: Serve, tmp_path: Path) -> None:
    url = await serve(FaceSettings(sign_speech=True))
    assert credential(await chat(url, "wav"), tmp_path).state == "not_present"
    assert credential(await speech(url, "wav"), tmp_path).state == "not_present"


async def test_a_reply_that_fails_is_no_signed_file(
    serve: Serve, signer: Signer, cascade: FakeCascade, http: ClientSession
) -> None:
    """What was made before is not sent as if it were whole."""
    cascade.error, cascade.fails_after = StageFailed("voicebox", "The sound is withheld."), 2
    url = await serve(FaceSettings(signer=signer, sign_speech=True))
    async with http.post(f"{url}/v1/audio/speech", json={**SPEECH, "response_format": "wav"}) as reply:
        with pytest.raises(ClientPayloadError):
            await reply.read()
