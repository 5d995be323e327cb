"""Tabs that are closed, browsers that are killed and channels that die, in the middle of a reply."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.gone import assert_gone, left
from tests.netns import Namespace
from tests.real_server import descendants
from tests.web.conftest import DoubleServers, Visit

HERE = Namespace(None)
PATIENCE = 30.0
"""Seconds that a busy machine may take for what is done at once on an idle one."""
CONSENT = 2.0
LONG = ("--answer", "word " * 200, "--max-sessions", "1")

CHANNELS = """
(() => {
  const make = RTCPeerConnection.prototype.createDataChannel;
  window.channels = [];
  RTCPeerConnection.prototype.createDataChannel = function (...given) {
    window.channels.push(make.apply(this, given));
    return window.channels.at(-1);
  };
})();
"""

SOCKET = """
() => new Promise((resolve) => {
  const ws = (window.ws = new WebSocket(`ws://${location.host}/v1/realtime`, ["realtime"]));
  const item = { type: "message", role: "user", content: [{ type: "input_text", text: "hello" }] };
  ws.onopen = () => {
    ws.send(JSON.stringify({ type: "conversation.item.create", item }));
    ws.send(JSON.stringify({ type: "response.create" }));
  };
  ws.onmessage = ({ data }) => JSON.parse(data).type === "response.output_audio.delta" && resolve();
})
"""


@pytest.fixture
def double() -> Iterator[DoubleServers]:
    """Servers that this process can ask what is left."""
    servers = DoubleServers(HERE)
    yield servers
    servers.stop()


def in_a_call(browser, url: str) -> Visit:
    """A page that is being answered."""
    visit = Visit(browser, f"{url}/healthz")
    visit.page.add_init_script(CHANNELS)
    visit.page.goto(url)
    visit.page.get_by_label("Type a message instead").fill("hello")
    visit.page.keyboard.press("Enter")
    visit.state("speaking")
    assert left(url)["places"] == 1
    return visit


def park(visit: Visit) -> None:
    """Leave no idle HTTP connection at the server, which would be counted."""
    visit.page.context.close()


def test_a_closed_tab(double, browse):
    url = double(*LONG)
    before = left(url)
    visit = in_a_call(browse(HERE), url)
    park(visit)
    assert_gone(url, before)


def test_a_closed_tab_with_a_websocket(double, browse):
    url = double(*LONG)
    before = left(url)
    visit = Visit(browse(HERE), f"{url}/healthz")
    visit.page.evaluate(SOCKET)
    assert left(url)["places"] == 1
    park(visit)
    assert_gone(url, before)


def test_a_dead_channel(double, browse):
    url = double(*LONG)
    visit = in_a_call(browse(HERE), url)
    visit.page.evaluate("channels[0].close()")
    visit.page.get_by_role("alert").wait_for(timeout=1000 * PATIENCE)
    assert "ended the call" in visit.page.get_by_role("alert").inner_text()
    begun = time.monotonic()
    while any((now := left(url))[what] for what in ("places", "replies", "objects")):
        assert time.monotonic() - begun < PATIENCE, now
        time.sleep(0.05)


def test_a_killed_browser(double, browse):
    """No word of farewell reaches the server; there was no microphone either that could fall silent."""
    url = double(*LONG, "--consent", str(CONSENT))
    before = left(url)
    others = descendants(os.getpid())
    in_a_call(browse(HERE), url)
    for pid in descendants(os.getpid()) - others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert_gone(url, before, CONSENT + PATIENCE)
