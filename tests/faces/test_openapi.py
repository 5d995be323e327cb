"""``/openapi.json``: it is valid, it has every route, and schemathesis finds no answer that it does not foresee."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from jsonschema import Draft202012Validator

from tests.faces.conftest import FakeCascade
from voicechat.contract.provenance import CannotCheck, Credential, MarkReport, Provenance
from voicechat.faces import openapi, provenance, stats, webrtc
from voicechat.faces.app import FaceSettings, create_app
from voicechat.faces.looplag import LoopLag
from voicechat.faces.metrics import METRICS
from voicechat.faces.operation import Operation, Reply, documented

Serve = Callable[..., Awaitable[str]]
CONFIG = Path(__file__).with_name("schemathesis.toml")


class Checker:
    """Says of a file what its first byte says."""

    async def check(self, path: Path) -> Provenance:
        """As the real one, without looking for a mark."""
        data = await asyncio.to_thread(path.read_bytes)
        if data[0] % 2:
            raise CannotCheck("The file can't be read as a sound.", "unreadable")
        return Provenance(
            mark=MarkReport(detected=False, duration_s=1.0, p_value=1.0, spans=(), scores=(0.0,)),
            credential=Credential(state="not_present"),
        )


class Watched:
    """Operations of nothing."""

    def stats(self) -> dict[str, Any]:
        """One figure."""
        return {"ready": True}

    async def profile(self, seconds: float, gpu_seconds: float) -> dict[str, Any]:
        """At once."""
        return {"server": {}}


EXTENSIONS = (
    lambda app, cascade: webrtc.setup(app, cascade, webrtc.RtcSettings()),
    lambda app, cascade: provenance.setup(app, cascade, Checker(), provenance.CheckLimits(1 << 20, 4)),
    lambda app, _: stats.setup(app, Watched(), LoopLag(), profiling=True),
)
"""Every face that the server has beside those of :func:`create_app`."""


def whole_app(**settings: Any) -> web.Application:
    """The application with all faces."""
    return create_app(FakeCascade(), FaceSettings(**settings), extensions=EXTENSIONS)


def schemas_of(value: Any) -> list[Any]:
    """All schemas of a document, by the fields under which they stand."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [value["schema"]] if isinstance(value, dict) and isinstance(value.get("schema"), dict) else []
    return found + [schema for part in inner for schema in schemas_of(part)]


def test_every_route_of_the_server_is_in_the_document(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    app = whole_app(web_dir=tmp_path)
    paths = openapi.document(app, FakeCascade().model, keyed=False)["paths"]
    routed = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD" and not route.resource.canonical.startswith("/{path")
    } - {("get", "/")}
    assert routed == {(method, path) for path, methods in paths.items() for method in methods}


def test_a_handler_that_says_nothing_of_itself_is_no_part_of_the_server() -> None:
    app = whole_app()

    async def silent(_: web.Request) -> web.Response:
        return web.Response()

    app.router.add_get("/v1/silent", silent)
    with pytest.raises(openapi.Undocumented, match="/v1/silent"):
        openapi.document(app, FakeCascade().model, keyed=False)
    documented(Operation("Nothing", {200: Reply("Nothing.")}))(silent)
    assert "/v1/silent" in openapi.document(app, FakeCascade().model, keyed=False)["paths"]


def test_schemas_are_schemas_and_examples_follow_them() -> None:
    found = openapi.document(whole_app(), FakeCascade().model, keyed=True)
    assert len(schemas_of(found["paths"])) > 50
    for schema in schemas_of(found["paths"]):
        Draft202012Validator.check_schema(schema)
    checked = 0
    for methods in found["paths"].values():
        for operation in methods.values():
            for body in operation.get("requestBody", {}).get("content", {}).values():
                for example in body.get("examples", {}).values():
                    Draft202012Validator(body["schema"]).validate(example["value"])
                    checked += 1
    assert checked >= 4


async def test_keys_are_in_the_document_where_they_are_needed(serve: Serve) -> None:
    for settings, keyed in ((FaceSettings(), False), (FaceSettings(api_keys=("secret",)), True)):
        async with ClientSession() as http, http.get(f"{await serve(settings)}/openapi.json") as reply:
            chat = (await reply.json())["paths"]["/v1/chat/completions"]["post"]
        assert ("401" in chat["responses"]) == ("security" in chat) == keyed


async def test_other_methods_are_refused_and_the_right_ones_named(serve: Serve) -> None:
    """RFC 9110, section 15.5.6."""
    url = await serve(extensions=EXTENSIONS)
    paths = openapi.document(whole_app(), FakeCascade().model, keyed=False)["paths"]
    async with ClientSession() as http:
        for path, methods in paths.items():
            known = {method.upper() for method in methods}
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - known:
                async with http.request(method, url + re.sub("{.*?}", "x", path)) as reply:
                    assert reply.status == 405, (method, path)
                    assert known <= set(reply.headers["Allow"].split(",")), (method, path)
                    assert (await reply.json())["error"]["code"] == "method_not_supported"


async def test_a_body_that_is_no_http_is_the_callers_fault(serve: Serve) -> None:
    url = await serve(extensions=EXTENSIONS)
    body = b'--x\r\nContent-Disposition: form-data; name="\x08"\r\n\r\nv=0\r\n--x--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    async with ClientSession() as http:
        for path in ("/v1/realtime/calls", "/v1/content_provenance_checks"):
            async with http.post(url + path, data=body, headers=headers) as reply:
                assert reply.status == 400
                assert (await reply.json())["error"]["code"] == "invalid_body"


async def run_schemathesis(url: str, folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of ``schemathesis run``."""
    program = str(Path(sys.executable).with_name("schemathesis"))
    process = await asyncio.create_subprocess_exec(
        program, "--config-file", str(CONFIG), "run", f"{url}/openapi.json", *options, "--no-color",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CONFIG.parents[2])},
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_schemathesis_finds_nothing(
    serve: Serve, served_app: Callable[[], web.Application], pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    url = await serve(FaceSettings(api_keys=("secret",)), extensions=EXTENSIONS)
    minutes = pytestconfig.getoption("--minutes")
    bound = ("--max-time", str(int(minutes * 60))) if minutes else ("--max-examples", "6", "--seed", "1")
    code, said = await run_schemathesis(url, tmp_path, "-H", "Authorization: Bearer secret", *bound)
    assert code == 0, said
    asked = served_app()[METRICS].requests.collect()[0].samples
    statuses = {sample.labels["status"] for sample in asked if sample.name.endswith("_total")}
    assert {"200", "400", "401", "404", "405", "415"} <= statuses
    assert not {status for status in statuses if re.fullmatch("5..", status)} - {"503"}
