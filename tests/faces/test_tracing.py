"""Traces, as a collector that speaks OTLP over HTTP gets them; names of requests in answers and log lines."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import ClientSession, web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.cascade_double import DoubleCascade
from tests.faces.conftest import FakeCascade
from tests.ws_server import Server, spoken
from voicechat.contract import logs
from voicechat.contract.errors import Overloaded
from voicechat.contract.events import StageTimes
from voicechat.faces.app import FaceSettings
from voicechat.faces.tracing import stages_of
from voicechat.telemetry import OtelTracer

Serve = Callable[..., Awaitable[str]]
CHAT = {"model": "fake-voice", "messages": [{"role": "user", "content": "my secret"}]}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""The example of https://www.w3.org/TR/trace-context/"""


@dataclass
class Collector:
    """Takes OTLP, as protobuf over HTTP."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        """``POST /v1/traces``."""
        assert request.content_type == "application/x-protobuf"
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for resource in sent.resource_spans:
            self.resources.append({item.key: item.value.string_value for item in resource.resource.attributes})
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    def tree(self) -> dict[str, str | None]:
        """Name of each span, and of the one above it."""
        names = {span.span_id: span.name for span in self.spans}
        return {span.name: names.get(span.parent_span_id) for span in self.spans}

    def named(self, name: str) -> Any:
        """The one span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def tracer(collector: Collector) -> AsyncIterator[OtelTracer]:
    """Its spans are sent once it is closed, which may be done twice."""
    made = OtelTracer(collector.url, model="fake-voice")
    yield made
    await asyncio.to_thread(made.close)


def attributes(span: Any) -> dict[str, Any]:
    """By name."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


async def test_a_request_is_one_trace_below_the_callers(
    serve: Serve, cascade: FakeCascade, collector: Collector, tracer: OtelTracer
) -> None:
    url = await serve(FaceSettings(tracer=tracer))
    headers = {"traceparent": PARENT, "X-Client-Request-Id": "mine"}
    async with ClientSession() as http:
        async with http.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers) as reply:
            assert reply.status == 200
            assert reply.headers["x-request-id"] == "req_4bf92f3577b34da6a3ce929d0e0e4736"
        cascade.error = Overloaded("full")
        async with http.post(f"{url}/v1/audio/speech", json={"model": "tts-1", "input": "hi", "voice": "ann"}) as reply:
            failed = reply.headers["x-request-id"]
        assert (await http.get(f"{url}/healthz")).status == 200
    await asyncio.to_thread(tracer.close)
    assert {span.name for span in collector.spans} == {
        "POST /v1/chat/completions", "POST /v1/audio/speech", "response"
    }  # fmt: skip
    request = collector.named("POST /v1/chat/completions")
    assert request.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert request.parent_span_id.hex() == "00f067aa0ba902b7"
    about = attributes(request)
    assert about["http.route"] == "/v1/chat/completions"
    assert about["http.response.status_code"] == 200
    assert about["client.request_id"] == "mine"
    ok, overloaded = sorted(
        (span for span in collector.spans if span.name == "response"), key=lambda span: span.status.code
    )
    assert ok.parent_span_id == request.span_id
    assert attributes(ok)["voicechat.outcome"] == "stop"
    assert attributes(overloaded)["voicechat.outcome"] == "overloaded"
    assert failed == f"req_{overloaded.trace_id.hex()}"
    assert collector.resources[0]["service.name"] == "voicechat"
    assert "secret" not in str(collector.spans)


async def test_a_spoken_turn_is_one_trace(
    serve_ws: Callable[..., Awaitable[Server]], collector: Collector, tracer: OtelTracer
) -> None:
    cascade = DoubleCascade(transcripts=["hello there"])
    server = await serve_ws(cascade, tracer=tracer)
    async with server.raw() as raw:
        await raw.say(spoken())
        await raw.until("response.done")
        await raw.ask("typed")
        await raw.until("response.done", 2)
    await server.until_empty()
    await asyncio.to_thread(tracer.close)
    first, second = sorted(
        (span for span in collector.spans if span.name == "turn"), key=lambda span: span.start_time_unix_nano
    )
    assert first.trace_id != second.trace_id and not first.parent_span_id and not second.parent_span_id
    inside = {span.name for span in collector.spans if span.trace_id == first.trace_id}
    assert {"turn", "speech", "transcription", "response"} <= inside
    assert {span.name for span in collector.spans if span.trace_id == second.trace_id} >= {"turn", "response"}
    for span in collector.spans:
        if span.name != "turn":
            parents = [other for other in collector.spans if other.span_id == span.parent_span_id]
            assert len(parents) == 1, span.name
            assert parents[0].trace_id == span.trace_id
            assert span.start_time_unix_nano <= span.end_time_unix_nano
    assert "hello there" not in str(collector.spans)


async def test_the_stages_follow_from_a_responses_times(
    serve: Serve, cascade: FakeCascade, collector: Collector, tracer: OtelTracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = StageTimes(
        ears=0.2, slot=0.5, thinker_first_token=0.6, thinker_done=1.0, talker_first_code=0.7, talker_first_chunk=0.8,
        talker_done=1.5, voicebox_first_chunk=0.9, first_audio=0.95, done=2.0,
    )  # fmt: skip
    assert {name: (start, end) for name, start, end, _ in stages_of(times)} == {
        "ears": (0.0, 0.2), "queue": (0.2, 0.5), "thinker": (0.5, 1.0), "talker": (0.6, 1.5), "voicebox": (0.8, 2.0),
    }  # fmt: skip
    monkeypatch.setattr("tests.faces.conftest.StageTimes", lambda **_: times)
    url = await serve(FaceSettings(tracer=tracer))
    async with ClientSession() as http:
        assert (await http.post(f"{url}/v1/chat/completions", json=CHAT)).status == 200
    await asyncio.to_thread(tracer.close)
    tree = collector.tree()
    stages = ("ears", "queue", "thinker", "talker", "voicebox")
    assert tree == {"POST /v1/chat/completions": None, "response": "POST /v1/chat/completions"} | dict.fromkeys(
        stages, "response"
    )
    queue = collector.named("queue")
    assert queue.end_time_unix_nano - queue.start_time_unix_nano == pytest.approx(0.3e9, abs=1e3)
    assert [event.name for event in collector.named("thinker").events] == ["first token"]


async def test_without_a_collector_nothing_is_traced_and_callers_still_have_their_names(serve: Serve) -> None:
    url = await serve()
    async with ClientSession() as http:
        for headers, expected in (
            ({"traceparent": PARENT}, "req_4bf92f3577b34da6a3ce929d0e0e4736"),
            ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, None),
            ({"traceparent": "nonsense"}, None),
            ({"x-request-id": "theirs"}, None),
            ({}, None),
        ):
            async with http.get(f"{url}/v1/models", headers=headers) as reply:
                name = reply.headers["x-request-id"]
            assert len(name) == 36 and name.startswith("req_") and name != f"req_{'0' * 32}"
            assert expected is None or name == expected
        for path in ("/healthz", "/metrics", "/openapi.json", "/nowhere", "/v1/models/none"):
            assert (await http.get(url + path)).headers["x-request-id"].startswith("req_"), path
        async with http.get(f"{url}/v1/models", headers={"X-Client-Request-Id": "x" * 513}) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["code"] == "invalid_client_request_id"
            assert reply.headers["x-request-id"].startswith("req_")


class Lines(logging.Handler):
    """Keeps lines as the server would write them."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.addFilter(logs.name)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Callable[[logging.Formatter], Lines]:
    """Attaches a handler to the root for one test."""
    made: list[Lines] = []

    def attach(formatter: logging.Formatter) -> Lines:
        made.append(Lines(formatter))
        logging.getLogger().addHandler(made[-1])
        logging.getLogger("voicechat").setLevel(logging.INFO)
        return made[-1]

    yield attach
    for handler in made:
        logging.getLogger().removeHandler(handler)
    logging.getLogger("voicechat").setLevel(logging.NOTSET)


async def test_log_lines_name_the_request_and_hold_no_content_unless_asked(
    serve: Serve, cascade: FakeCascade, lines: Callable[..., Lines], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await serve()
    found = lines(logs.JsonLines())
    cascade.error, cascade.fails_after = ZeroDivisionError("oops"), 0
    async with ClientSession() as http:
        async with http.post(f"{url}/v1/chat/completions", json=CHAT, headers={"X-Client-Request-Id": "mine"}) as reply:
            name = reply.headers["x-request-id"]
        cascade.error = None
        await http.post(f"{url}/v1/chat/completions", json=CHAT)
        (line,) = [line for line in map(json.loads, found.lines) if line["level"] == "error"]
        assert (line["request_id"], line["client_request_id"]) == (name, "mine")
        assert "ZeroDivisionError" in line["exception"]
        assert not any("my secret" in line for line in found.lines)
        monkeypatch.setenv("VOICECHAT_LOG__CONTENT", "true")
        await http.post(f"{url}/v1/chat/completions", json=CHAT)
    assert any("my secret" in line for line in found.lines)


async def test_no_line_of_a_conversation_holds_its_words(
    serve_ws: Callable[..., Awaitable[Server]], lines: Callable[..., Lines]
) -> None:
    found = lines(logs.TextLines())
    cascade = DoubleCascade(transcripts=["my secret"], fail_respond=Overloaded("no place for my secret"), fail_after=1)
    server = await serve_ws(cascade)
    async with server.raw() as raw:
        await raw.say(spoken())
        await raw.until("response.done")
        await raw.ask("my secret")
        await raw.until("response.done", 2)
    await server.until_empty()
    assert any("a response failed" in line and "[req_" in line for line in found.lines)
    assert not any("secret" in line for line in found.lines)
