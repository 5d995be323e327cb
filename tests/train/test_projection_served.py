"""``voicechat serve`` with an LLM that the weights do not know: it answers aloud, and its rows are read."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.real_server import ROOT, RealServer, Servers
from tests.train.small_llm import WIDTH, write_llm
from voicechat.assemble import AssembledPaths
from voicechat.media.decode import decode_audio
from voicechat.models.embedded.projection import PROJECTION_FILE, ProjectionCard, talker_sha256
from voicechat.models.embedded.weights import load_voice_config
from voicechat.train.projection import write_projection, write_settings


def call(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        made: dict[str, Any] = json.load(answer)
    return made


@pytest.fixture
def settings(models: AssembledPaths, tmp_path: Path) -> Path:
    """Settings as ``voicechat train thinker`` leaves them, with a random matrix: its sound is not judged here."""
    folder = write_llm(tmp_path / "llm")
    width = load_voice_config(models.folders["weights"]).talker.width
    card = ProjectionCard("neox", WIDTH, width, talker_sha256(models.folders["weights"]))
    torch.manual_seed(0)
    write_projection(tmp_path, 0.01 * torch.randn(width, WIDTH), card)
    write_settings(tmp_path / "neox.yaml", "neox", folder, tmp_path / PROJECTION_FILE, models.folders["weights"])
    return tmp_path / "neox.yaml"


def test_a_projection_of_another_llm_is_told_at_once(models: AssembledPaths, settings: Path) -> None:
    command = [sys.executable, "-m", "voicechat", "serve", "--model", "embedded-tiny", "--port", "0"]
    command += ["--set", f"model.talker.projection={settings.parent}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"neox, whose hidden states are {WIDTH} wide; those of the configured Thinker are 576 wide" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_it_answers_aloud(servers: Servers, settings: Path, tmp_path: Path) -> None:
    servers.stop()
    server = RealServer(str(settings), tmp_path / "log", "--set", "thinker.temperature=0.8")
    try:
        url = server.wait()
        assert call(f"{url}/v1/models")["data"][0]["id"] == "neox"
        question = {"role": "user", "content": "what is it"}
        spoken = {"modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "wav"}}
        answer = call(
            f"{url}/v1/chat/completions",
            {"model": "neox", "messages": [question], "seed": 1, "max_tokens": 12, **spoken},
        )
        audio = answer["choices"][0]["message"]["audio"]
        assert audio["transcript"]
        assert decode_audio(base64.b64decode(audio["data"]), "wav").size > 4000
        pool = call(f"{url}/v1/stats")["pool"]
        assert pool["rows_written"] > 0
        assert pool["rows_read"] > 0
    finally:
        server.stop()
