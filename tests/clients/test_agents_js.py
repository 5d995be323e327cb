"""npm ``@openai/agents-realtime`` in Node. Looked for in $VOICECHAT_NODE, a folder with ``node_modules``."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.speech import voice
from tests.ws_server import spoken
from voicechat.media.resample import to_pcm

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("VOICECHAT_NODE") or HERE)
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None or not (FOLDER / "node_modules/@openai/agents-realtime").is_dir(),
    reason="needs node, and `npm install @openai/agents-realtime` in $VOICECHAT_NODE",
)


def write(path: Path, sound: np.ndarray) -> str:
    path.write_bytes(to_pcm(sound.astype(np.float32)).astype("<i2").tobytes())
    return str(path)


async def test_three_turns_with_an_interruption(serve, tmp_path):
    cascade = DoubleCascade(transcripts=["one", "word " * 80, "three"], word_delay=0.05)
    server = await serve(cascade)
    url = server.base.replace("http", "ws") + "/v1/realtime?model=gpt-realtime"
    turn = write(tmp_path / "turn.pcm", spoken())
    interruption = write(tmp_path / "interruption.pcm", voice(0.8, 24_000))
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(
        NODE, str(HERE / "agents.cjs"), str(FOLDER), url, turn, interruption,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    seen = json.loads(output)
    assert seen["errors"] == []
    assert seen["first"] == round(3 * 0.3 * 24_000) * 2
    assert seen["interrupted"] >= 1
    assert seen["truncated"], "the client says what was heard"
    assert cascade.responses[1].cancelled.is_set()
    said = [(item["role"], item["text"]) for item in seen["history"]]
    assert said[0] == ("user", "one") and said[1] == ("assistant", "You said: one.")
    assert said[-2:] == [("user", "three"), ("assistant", "You said: three.")]
