"""The page while its network goes away or changes: the call, its session and its reply go on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from tests.netns import Namespace
from tests.web.conftest import Visit

UFRAG = "() => peers[0].remoteDescription.sdp.match(/ice-ufrag:(\\S+)/)[1]"
SECONDS = 60


def speaking(browser, url: str) -> Visit:
    """A page that is being answered, for some 9 s."""
    visit = Visit(browser, url)
    visit.page.get_by_label("Type a message instead").fill("hello")
    visit.page.keyboard.press("Enter")
    visit.state("speaking", seconds=SECONDS)
    return visit


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds; the page's policy lets no condition in as text."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < SECONDS
        time.sleep(0.05)


def goes_on(visit: Visit) -> None:
    """The reply is heard to its end, and nobody complains."""
    visit.state("listening", seconds=SECONDS)
    assert visit.page.evaluate("peers.length") == 1, "the same connection"
    assert visit.page.get_by_role("alert").count() == 0 or not visit.page.get_by_role("alert").inner_text()


def test_another_network_is_taken_by_an_ice_restart(double_server, namespace, browse):
    visit = speaking(browse(namespace), double_server("--answer", "word " * 30))
    before = visit.page.evaluate(UFRAG)
    visit.page.evaluate("dispatchEvent(new Event('online'))")
    eventually(lambda: visit.page.evaluate(UFRAG) != before)
    eventually(lambda: visit.page.evaluate("peers[0].connectionState") == "connected")
    packets = visit.page.evaluate("inboundAudio()")["packetsReceived"]
    eventually(lambda: visit.page.evaluate("inboundAudio()")["packetsReceived"] > packets + 50)
    goes_on(visit)


@pytest.mark.slow
def test_fifteen_seconds_without_a_network(double_server, namespace, browse):
    if namespace.name is None:
        pytest.skip("needs a network namespace of its own")
    visit = speaking(browse(namespace), double_server("--answer", "word " * 30))
    link(namespace, "down")
    time.sleep(15)
    assert visit.page.evaluate("document.body.dataset.state") == "speaking"
    link(namespace, "up")
    packets = visit.page.evaluate("inboundAudio()")["packetsReceived"]
    begun = time.monotonic()
    eventually(lambda: visit.page.evaluate("inboundAudio()")["packetsReceived"] > packets + 5)
    print(f"sound again after {time.monotonic() - begun:.2f} s")
    goes_on(visit)


def link(namespace: Namespace, state: str) -> None:
    """Pull the cable, or put it back."""
    assert namespace.name is not None
    subprocess.run(["ip", "-n", namespace.name, "link", "set", "lo", state], check=True)
