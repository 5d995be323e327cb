"""``/v1/content_provenance_checks`` by OpenAI's own client, over a checker that has the answer ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, FormData
from openai import APIStatusError, AsyncOpenAI

from tests.faces.conftest import FakeCascade
from voicechat.contract.cascade import Watermark
from voicechat.contract.provenance import CannotCheck, Credential, MarkReport, MarkSpan, Provenance
from voicechat.faces import provenance
from voicechat.faces.app import FaceSettings
from voicechat.faces.provenance import CheckLimits

SPAN = MarkSpan(start_s=0.5, end_s=2.5, payload=0x2F3A, key_id="k1", p_value=1e-12, score=9.0)
MARKED = MarkReport(detected=True, duration_s=3.0, p_value=1e-12, spans=(SPAN,), scores=(9.0, 8.0, 1.0))
PLAIN = MarkReport(detected=False, duration_s=3.0, p_value=0.4, spans=(), scores=(0.1, 0.2, 0.3))
MADE_AT = "2026-11-30T12:00:00Z"
SIGNED = Credential(state="trusted", issuer="Acme", model="embedded", generated_at=MADE_AT, generated=True)
LIMITS = CheckLimits(max_bytes=1 << 20, max_checks=2, disconnect_poll_s=0.02)


class Ready:
    """Answers what it was told to, once its gate is open."""

    def __init__(self) -> None:
        self.answer: Provenance | CannotCheck = Provenance(mark=MARKED, credential=SIGNED)
        self.files: list[tuple[Path, bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0

    async def check(self, path: Path) -> Provenance:
        self.files.append((path, path.read_bytes()))  # noqa: ASYNC240
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.answer, CannotCheck):
            raise self.answer
        return self.answer


@pytest.fixture
def checker() -> Ready:
    return Ready()


@pytest.fixture
async def client(serve: Callable[..., Awaitable[str]], checker: Ready, cascade: FakeCascade) -> AsyncOpenAI:
    cascade.model = replace(cascade.model, watermark=Watermark(0x2F3A, "k1"))
    url = await serve(
        FaceSettings(api_keys=("sk-1",)),
        extensions=[lambda app, cascade: provenance.setup(app, cascade, checker, LIMITS)],
    )
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0)


async def test_openais_client_reads_the_answer(client: AsyncOpenAI, checker: Ready) -> None:
    check = await client.content_provenance_checks.create(file=("reply.mp3", b"sound" * 1000))
    assert [data for _, data in checker.files] == [b"sound" * 1000]
    assert check.object == "content_provenance_check" and check.created_at > 1.7e9
    c2pa, mark = check.results
    assert (c2pa.type, c2pa.outcome, c2pa.validation_state) == ("c2pa", "detected", "trusted")
    assert (c2pa.issuer, c2pa.model, c2pa.generated_at) == ("Acme", "embedded", MADE_AT)
    found = mark.to_dict()
    assert found["type"] == "voicechat_watermark" and found["outcome"] == "detected"
    assert (found["payload"], found["key_id"], found["made_here"]) == (0x2F3A, "k1", True)
    assert found["p_value"] == 1e-12 and found["duration"] == 3.0 and found["scores"] == [9.0, 8.0, 1.0]
    assert found["spans"] == [
        {"start": 0.5, "end": 2.5, "payload": 0x2F3A, "key_id": "k1", "p_value": 1e-12, "score": 9.0, "speed": 1.0}
    ]
    assert not checker.files[0][0].exists(), "nothing of the file is kept"


async def test_what_is_not_marked(client: AsyncOpenAI, checker: Ready) -> None:
    checker.answer = Provenance(mark=PLAIN, credential=Credential(state="not_present"))
    c2pa, mark = (await client.content_provenance_checks.create(file=b"sound")).results
    assert (c2pa.outcome, c2pa.validation_state) == ("not_detected", "not_present")
    found = mark.to_dict()
    assert (found["outcome"], found["payload"], found["made_here"]) == ("not_detected", None, False)


@pytest.mark.parametrize(
    ("credential", "outcome"),
    [
        (Credential(state="valid", generated=True), "detected"),
        (Credential(state="valid", generated=False), "not_detected"),
        (Credential(state="invalid", generated=True), "not_detected"),
    ],
)
async def test_signed_metadata_counts_if_it_holds_and_says_so(
    client: AsyncOpenAI, checker: Ready, credential: Credential, outcome: str
) -> None:
    checker.answer = Provenance(mark=PLAIN, credential=credential)
    c2pa = (await client.content_provenance_checks.create(file=b"sound")).results[0]
    assert (c2pa.outcome, c2pa.validation_state) == (outcome, credential.state)


async def test_anothers_mark_is_not_ours(client: AsyncOpenAI, checker: Ready) -> None:
    other = MarkSpan(start_s=0, end_s=2, payload=7, key_id="k1", p_value=1e-12, score=9.0)
    report = MarkReport(detected=True, duration_s=3.0, p_value=1e-12, spans=(other,), scores=())
    checker.answer = Provenance(mark=report, credential=Credential(state="not_present"))
    found = (await client.content_provenance_checks.create(file=b"sound")).results[1].to_dict()
    assert (found["outcome"], found["payload"], found["made_here"]) == ("detected", 7, False)


@pytest.mark.parametrize("code", ["silent", "too_short", "no_audio", "unreadable"])
async def test_files_that_can_not_be_checked(client: AsyncOpenAI, checker: Ready, code: str) -> None:
    checker.answer = CannotCheck("There is a reason.", code)
    with pytest.raises(APIStatusError) as caught:
        await client.content_provenance_checks.create(file=b"sound")
    error = caught.value
    assert error.status_code == 400
    assert error.body == {
        "message": "There is a reason.", "type": "invalid_request_error", "param": "file", "code": code
    }  # fmt: skip


async def test_files_that_are_too_large(client: AsyncOpenAI, http: ClientSession, checker: Ready) -> None:
    """Whether the length is told beforehand or not, no more of it is taken than may be."""
    with pytest.raises(APIStatusError) as caught:
        await client.content_provenance_checks.create(file=bytes(LIMITS.max_bytes + 100_000))
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (413, "too_large", "file")

    async def endless() -> Any:
        while True:
            yield bytes(100_000)

    form = FormData()
    form.add_field("file", endless(), filename="endless.wav", content_type="audio/wav")
    headers = {"Authorization": "Bearer sk-1"}
    async with http.post(f"{client.base_url}content_provenance_checks", data=form, headers=headers) as reply:
        assert reply.status == 413 and (await reply.json())["error"]["code"] == "too_large"
    assert checker.files == []


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({}, 400, "missing_required_parameter", "file"),
        ({"sound": b"x"}, 400, "unknown_parameter", "sound"),
        ({"file": b""}, 400, "no_audio", "file"),
    ],
)
async def test_wrong_forms(
    client: AsyncOpenAI, http: ClientSession, fields: dict[str, bytes], status: int, code: str, param: str
) -> None:
    form = FormData(default_to_multipart=True)
    for name, value in fields.items():
        form.add_field(name, value, filename="a.wav")
    headers = {"Authorization": "Bearer sk-1"}
    async with http.post(f"{client.base_url}content_provenance_checks", data=form, headers=headers) as reply:
        error = (await reply.json())["error"]
        assert (reply.status, error["code"], error["param"]) == (status, code, param)


async def test_it_is_no_json_and_not_for_strangers(client: AsyncOpenAI, http: ClientSession) -> None:
    url = f"{client.base_url}content_provenance_checks"
    async with http.post(url, json={}, headers={"Authorization": "Bearer sk-1"}) as reply:
        assert reply.status == 415
    async with http.post(url, data=FormData({"file": "x"})) as reply:
        assert reply.status == 401


async def test_without_a_key_it_says_so(serve: Callable[..., Awaitable[str]]) -> None:
    url = await serve(extensions=[lambda app, cascade: provenance.setup(app, cascade, None, LIMITS)])
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with pytest.raises(APIStatusError, match="no watermark key") as caught:
        await client.content_provenance_checks.create(file=b"sound")
    assert (caught.value.status_code, caught.value.code) == (503, "no_watermark_key")


async def test_a_file_that_dribbles_in_holds_its_place_for_a_while_only(
    serve: Callable[..., Awaitable[str]], http: ClientSession, checker: Ready
) -> None:
    limits = replace(LIMITS, max_checks=1, upload_s=0.3)
    url = await serve(extensions=[lambda app, cascade: provenance.setup(app, cascade, checker, limits)])

    async def dribble() -> Any:
        while True:
            yield b"x"
            await asyncio.sleep(0.05)

    form = FormData()
    form.add_field("file", dribble(), filename="slow.wav", content_type="audio/wav")
    async with asyncio.timeout(30), http.post(f"{url}{provenance.PATH}", data=form) as reply:
        assert reply.status == 408
        error = (await reply.json())["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "file", "timeout")
    assert checker.files == []
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    await client.content_provenance_checks.create(file=b"sound")


async def test_the_wait_for_an_answer_is_not_of_the_upload(
    serve: Callable[..., Awaitable[str]], checker: Ready
) -> None:
    limits = replace(LIMITS, upload_s=0.3)
    url = await serve(extensions=[lambda app, cascade: provenance.setup(app, cascade, checker, limits)])
    checker.gate.clear()
    asyncio.get_running_loop().call_later(0.6, checker.gate.set)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert (await client.content_provenance_checks.create(file=b"sound")).results


async def test_few_at_once(client: AsyncOpenAI, checker: Ready) -> None:
    checker.gate.clear()
    running = [asyncio.create_task(client.content_provenance_checks.create(file=b"sound")) for _ in range(2)]
    while len(checker.files) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    with pytest.raises(APIStatusError) as caught:
        await client.content_provenance_checks.create(file=b"sound")
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
    assert caught.value.response.headers["retry-after"] == "5"
    checker.gate.set()
    await asyncio.gather(*running)
    await client.content_provenance_checks.create(file=b"sound")


async def test_a_check_ends_with_its_caller(client: AsyncOpenAI, checker: Ready) -> None:
    checker.gate.clear()
    asking = asyncio.create_task(client.content_provenance_checks.create(file=b"sound"))
    while not checker.files:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait({asking})
    async with asyncio.timeout(10):
        while not checker.cancelled or checker.files[0][0].exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_models_say_whether_sound_is_marked(
    client: AsyncOpenAI, serve: Callable[..., Awaitable[str]], http: ClientSession
) -> None:
    told = (await client.models.list()).data[0].to_dict()["watermark"]
    assert told == {"enabled": True, "payload": 0x2F3A, "key_id": "k1"}
