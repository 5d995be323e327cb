"""Calls of a real Firefox: its offers are answered, it connects, it is heard, and it hears the reply."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests import needed
from tests.web.conftest import ROOT

SCRIPT = Path(__file__).with_name("firefox_call.js")


def test_firefox_calls(double_server, namespace, tmp_path):
    needed.program("firefox-esr", "firefox")
    if namespace.name is not None:  # Firefox gathers no address where there is no way out at all; this one ends here
        namespace.run("ip", "link", "add", "way-out", "type", "veth", "peer", "name", "nowhere")
        namespace.run("ip", "address", "add", "10.5.0.1/24", "dev", "way-out")
        for end in ("way-out", "nowhere"):
            namespace.run("ip", "link", "set", end, "up")
        namespace.run("ip", "route", "add", "default", "via", "10.5.0.2")
    base = double_server("--answer", "word " * 8)
    argv = [sys.executable, "-m", "tests.web.firefox", str(tmp_path), f"{base}/", str(SCRIPT)]
    done = subprocess.run(namespace.command(argv), cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    calls = json.loads(done.stdout)
    assert "bundle-only" not in calls[0]["offer"] and "a=bundle-only" in calls[1]["offer"]
    for call in calls:
        assert "response.done" in call["kinds"] and "error" not in call["kinds"]
        heard = call["heard"]
        assert heard["packetsReceived"] > 100, "8 words of 0.3 s"
        assert heard["totalAudioEnergy"] > 0.01, "and they are no silence"
        assert heard["packetsLost"] == 0
        assert call["said"]["packetsSent"] > 50
