"""``voicechat serve`` as a program: its start, its answers while it warms up, its end, and what it leaves behind."""

from __future__ import annotations

import base64
import contextlib
import gc
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cascade.listening import error_rate
from tests.real_server import ROOT, RealServer, Servers, descendants, pools, pools_of, wait_until_gone
from voicechat.assemble import AssembledPaths
from voicechat.config import load_settings
from voicechat.media.decode import decode_audio
from voicechat.server import _is_loopback, _listen, _settle, open_to_all

QUESTION = "What is the capital of France?"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "wav"}}


def call(url: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def chat(url: str, model: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "messages": messages, "temperature": 0, "seed": 1, "max_tokens": 40, **fields}
    status, answer = call(f"{url}/v1/chat/completions", body)
    assert status == 200, answer
    return answer


def stream(url: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """The events of a streamed answer, as they come."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=120)
    return answer


# ---- without engines


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("0.0.0.0", False), ("", False)],
)
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert _is_loopback(host) is expected


@pytest.mark.parametrize(
    ("overrides", "starts"),
    [
        ([], True),
        (["server.host=0.0.0.0"], False),
        (["server.host=0.0.0.0", "server.api_keys=k"], True),
        (["server.host=0.0.0.0", "server.anonymous=true"], True),
        (["server.host=0.0.0.0", "server.keys_file=KEYS"], True),
    ],
)
def test_others_need_a_key(tmp_path: Path, overrides: list[str], starts: bool) -> None:
    """Beyond this machine the server does not open for everybody, unless it is told to."""
    file = tmp_path / "keys.yaml"
    file.write_text("keys: []", encoding="utf-8")
    overrides = [f"data_dir={tmp_path / 'data'}", *(text.replace("KEYS", str(file)) for text in overrides)]
    refusal = open_to_all(load_settings("embedded-tiny", overrides=overrides, environ={}))
    assert (refusal is None) is starts
    assert refusal is None or "voicechat keys add" in refusal


def test_listening_takes_a_free_port() -> None:
    with _listen("127.0.0.1", 0) as one, _listen("127.0.0.1", 0) as two:
        assert one.getsockname()[1] != two.getsockname()[1]
        assert not one.getblocking()
        with pytest.raises(OSError, match="in use"):
            _listen("127.0.0.1", one.getsockname()[1])


def test_listening_on_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        sock = _listen("::1", 0)
    except OSError:
        pytest.skip("no IPv6 loopback")
    with sock:
        assert sock.family == socket.AF_INET6


def test_a_port_that_is_taken_is_told(models: AssembledPaths) -> None:
    """At once, before anything is loaded."""
    with _listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "voicechat", "serve", "--model", "embedded-tiny", "--port", port]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"can't listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


# ---- stages that are not yet, or never, up


@pytest.fixture
def starting(servers: Servers, models: AssembledPaths, tmp_path: Path) -> Iterator[RealServer]:
    """A server whose stages have just been told to start."""
    servers.stop()
    server = RealServer("embedded-tiny", tmp_path / "log")
    end = time.monotonic() + 60
    while len(descendants(server.process.pid)) < 3:
        assert server.process.poll() is None, server.text()
        assert time.monotonic() < end, server.text()
        time.sleep(0.02)
    yield server
    if server.process.poll() is None:
        server.kill()


def port_of(pid: int) -> int:
    """The port on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                inodes.add(found[1])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError("it does not listen")


def test_a_server_that_warms_up_answers_and_can_be_stopped(starting: RealServer) -> None:
    """Alive, not ready, every question refused with a reason; and SIGTERM ends all of it at once."""
    url = f"http://127.0.0.1:{port_of(starting.process.pid)}"
    assert call(f"{url}/healthz")[0] == 200
    status, ready = call(f"{url}/readyz")
    assert status == 503
    assert "thinker" in ready["waiting_for"]
    status, refused = call(
        f"{url}/v1/chat/completions", {"model": "embedded-tiny", "messages": [{"role": "user", "content": "Hi"}]}
    )
    assert status == 503
    assert "not ready" in refused["error"]["message"]
    starting.stop()
    assert "Traceback" not in starting.text()


def test_a_stage_that_cannot_start_ends_the_server(servers: Servers, models: AssembledPaths, tmp_path: Path) -> None:
    """With one clear line and code 1, and nothing left behind."""
    servers.stop()
    # more tokens than the cache can hold: the engine refuses to start
    arguments = ["--set", "talker.max_model_len=4096", "--set", "talker.kv_cache_mb=16"]
    server = RealServer("embedded-tiny", tmp_path / "log", *arguments)
    try:
        mapped: set[str] = set()
        children: set[int] = set()
        while server.process.poll() is None:
            children |= server.children()
            with contextlib.suppress(OSError):
                mapped |= pools_of(server.process.pid)
            assert not server.url
            time.sleep(0.1)
        assert server.process.returncode == 1, server.text()
        assert "the talker stage ended while starting" in server.text()
        assert not wait_until_gone(children, 10)
        assert mapped
        assert not mapped & pools()
    finally:
        if server.process.poll() is None:
            server.kill()


# ---- ready


def test_what_a_running_server_tells_of_itself(tiny_server: RealServer) -> None:
    url = tiny_server.url
    status, ready = call(f"{url}/readyz")
    assert (status, ready["status"], ready["model"]) == (200, "ready", "embedded-tiny")
    assert ready["stages"] == {"thinker": "up", "talker": "up", "voicebox": "up"}
    stats = call(f"{url}/v1/stats")[1]
    assert stats["slots"]["free"] == stats["slots"]["total"] > 0
    assert set(stats["processes"].values()) <= tiny_server.children()
    with urllib.request.urlopen(f"{url}/", timeout=10) as page:
        assert page.headers.get_content_type() == "text/html"


def test_the_loop_is_never_blocked_for_long(tiny_server: RealServer) -> None:
    """While replies are made, the server's loop goes round: no model runs in it. The bound is one of order."""
    for _ in range(2):
        chat(tiny_server.url, "embedded-tiny", **SPOKEN)
    assert call(f"{tiny_server.url}/v1/stats")[1]["loop_lag_ms"]["p50"] < 50


def test_rows_are_counted(tiny_server: RealServer) -> None:
    before = call(f"{tiny_server.url}/v1/stats")[1]["pool"]
    answer = chat(tiny_server.url, "embedded-tiny", **SPOKEN)
    after = call(f"{tiny_server.url}/v1/stats")[1]["pool"]
    spoken = answer["usage"]["completion_tokens_details"]["audio_tokens"]
    assert after["rows_written"] - before["rows_written"] == answer["usage"]["completion_tokens"] - spoken
    assert after["rows_read"] - before["rows_read"] >= spoken > 0


def test_a_killed_stage_comes_back_in_the_server(tiny_server: RealServer) -> None:
    url = tiny_server.url
    pid = call(f"{url}/v1/stats")[1]["processes"]["voicebox"]
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 120
    seen = set()
    while True:
        status, ready = call(f"{url}/readyz")
        seen.add(status)
        if status == 200 and call(f"{url}/v1/stats")[1]["processes"]["voicebox"] != pid:
            break
        assert time.monotonic() < end, ready
        time.sleep(0.05)
    assert 503 in seen
    assert "Paris" in chat(url, "embedded-tiny")["choices"][0]["message"]["content"]


def test_a_killed_server_leaves_nothing_running(servers: Servers, last_tiny_server: RealServer) -> None:
    """No SIGTERM, no clean-up of its own: its stages, their engines and the pool go with it all the same."""
    process = last_tiny_server.process
    children, mapped = last_tiny_server.children(), pools_of(process.pid)
    process.kill()
    process.wait()
    left = wait_until_gone(children, 15)
    assert not left, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
    assert mapped
    assert not mapped & pools()
    servers.forget()


# ---- the default model


def test_the_default_model_from_end_to_end(servers: Servers, embedded_server: str) -> None:
    """A question, a spoken answer, and that answer spoken back to the server; then SIGTERM in the middle of another."""
    answer = chat(embedded_server, "embedded", **SPOKEN)
    audio = answer["choices"][0]["message"]["audio"]
    assert "Paris" in audio["transcript"]
    assert decode_audio(base64.b64decode(audio["data"]), "wav").size > 8000
    part = {"type": "input_audio", "input_audio": {"data": audio["data"], "format": "wav"}}
    again = {"role": "user", "content": [part]}
    body = {"model": "embedded", "messages": [again], "max_tokens": 1, "include_details": True}
    status, heard = call(f"{embedded_server}/v1/chat/completions", body)
    assert status == 200, heard
    assert error_rate(audio["transcript"], heard["details"]["heard"][0]) <= 0.3

    story = {"role": "user", "content": "Tell me a long story about a dog."}
    streaming = {**SPOKEN, "audio": {"voice": "heart", "format": "pcm16"}, "stream": True}
    with stream(embedded_server, {"model": "embedded", "messages": [story], **streaming}) as events:
        assert events.readline().startswith(b"data:")
        with ThreadPoolExecutor(1) as reader:
            rest = reader.submit(events.read)
            servers.stop()
            assert rest.result(60).endswith(b"data: [DONE]\n\n"), "a live reply is finished first"


def test_the_collector_does_not_look_at_what_is_there_from_the_start() -> None:
    kept = [{"some": [number]} for number in range(1000)]
    try:
        _settle()
        assert gc.get_freeze_count() > len(kept)
        assert len(gc.get_objects()) < len(kept)
    finally:
        gc.unfreeze()
