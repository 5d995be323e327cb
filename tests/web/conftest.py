"""A server, a browser with a microphone that speaks, and a place for screenshots."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests import needed, netns
from tests.clients.recordings import listen, questions, spoken_answers  # noqa: F401
from tests.speech import silence, voice, write_wav

ROOT = Path(__file__).resolve().parents[2]
RATE = 48_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-loopback-in-peer-connection",
    "--disable-features=WebRtcHideLocalIpsWithMdns",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
)


@pytest.fixture(scope="module")
def namespace() -> Iterator[netns.Namespace]:
    """Where the double server and its browser run."""
    with netns.fresh() as space:
        yield space


class DoubleServers:
    """Starts the application over the double cascade."""

    def __init__(self, space: netns.Namespace) -> None:
        self._space = space
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, *arguments: str | Path) -> str:
        """Start one; its address."""
        argv = self._space.command([sys.executable, "-m", "tests.web.double_server", *map(str, arguments)])
        process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), "the server did not start"
        return address

    def stop(self) -> None:
        """End all of them, without a word to their clients."""
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.wait()


@pytest.fixture
def double_server(namespace: netns.Namespace) -> Iterator[DoubleServers]:
    """Starts servers that end with the test."""
    servers = DoubleServers(namespace)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of Chromium."""
    return needed.program("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def browse(chromium: str, tmp_path: Path) -> Iterator[Callable[..., Browser]]:
    """Starts Chromium in a namespace, with a WAV file as its microphone, or a quiet one."""
    with sync_playwright() as playwright, contextlib.ExitStack() as stack:

        def start(space: netns.Namespace, wav: Path | None = None, *flags: str) -> Browser:
            executable = space.script(tmp_path / "browser", chromium)
            wav = wav or write_wav(tmp_path / "quiet.wav", silence(60, RATE), RATE)  # else Chromium beeps
            microphone = [f"--use-file-for-fake-audio-capture={wav}%noloop"]
            browser = playwright.chromium.launch(
                executable_path=str(executable), args=[*FLAGS, *microphone, *flags], headless=True
            )
            stack.callback(browser.close)
            return browser

        yield start


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """A microphone that says one thing and then is quiet. Chromium plays it from its own start on."""
    sound = np.concatenate([silence(1.5, RATE), voice(1.2, RATE), silence(60, RATE)])
    return write_wav(tmp_path / "question.wav", sound, RATE)


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go: $VOICECHAT_SHOTS, else the test's own folder."""
    path = Path(os.environ.get("VOICECHAT_SHOTS") or tmp_path / "shots")
    path.mkdir(parents=True, exist_ok=True)
    return path


WATCH = """
(() => {
  const Native = RTCPeerConnection;
  window.peers = [];
  window.RTCPeerConnection = class extends Native {
    constructor(...arguments_) { super(...arguments_); window.peers.push(this); }
  };
  window.states = [];
  addEventListener("DOMContentLoaded", () => {
    const note = () => {
      if (document.body.dataset.state !== window.states.at(-1)) window.states.push(document.body.dataset.state);
    };
    new MutationObserver(note).observe(document.body, { attributes: true });
    note();
  });
  window.inboundAudio = async () => {
    const report = await window.peers.at(-1)?.getStats();
    return [...(report?.values() ?? [])].find((s) => s.type === "inbound-rtp" && s.kind === "audio") ?? null;
  };
})();
"""


class Visit:
    """A page in a browser, and what it complained of."""

    def __init__(self, browser: Browser, url: str, **context: object) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page: Page = browser.new_context(**context).new_page()
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.add_init_script(WATCH)
        self.page.goto(url)

    def state(self, *states: str, seconds: float = 15) -> None:
        """Wait until the page is in one of ``states``."""
        wanted = ", ".join(f'body[data-state="{state}"]' for state in states)
        self.page.wait_for_selector(wanted, timeout=seconds * 1000, state="attached")
