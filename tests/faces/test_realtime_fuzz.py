"""Structured events with anything in any field, over a WebSocket: every one is answered, no session hangs or breaks."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator

import aiohttp
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.cascade_double import DoubleCascade
from tests.fuzzing import fuzz
from tests.protocol import check_server_event
from tests.realtime.test_malformed import mutated
from tests.speech import voice
from tests.ws_server import Server, pcm
from voicechat.faces.app import FaceSettings

SPEECH = pcm(voice(0.4, 24_000))
ODD = base64.b64encode(bytes(range(255))).decode()
SOUNDS = st.sampled_from([SPEECH, pcm(np.zeros(4800, np.float32)), ODD, ""]).map(
    lambda audio: json.dumps({"type": "input_audio_buffer.append", "audio": audio})
)
MESSAGES = st.lists(mutated() | SOUNDS | st.binary(max_size=40), max_size=10)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


async def _session(server: Server, messages: list[str | bytes]) -> None:
    """One session: what is sent in, then a question whose answer must come."""
    async with server.http.ws_connect(f"{server.base}/v1/realtime?model=double", max_msg_size=0) as ws:
        for message in messages:
            await (ws.send_str(message) if isinstance(message, str) else ws.send_bytes(message))
        await ws.send_str(json.dumps({"type": "conversation.item.retrieve", "event_id": "last", "item_id": "nowhere"}))
        async with asyncio.timeout(60):
            while True:
                message = await ws.receive()
                assert message.type is aiohttp.WSMsgType.TEXT, (message, ws.close_code)
                event = json.loads(message.data)
                check_server_event(event)
                if event["type"] == "error" and event["error"]["event_id"] == "last":
                    assert event["error"]["code"] != "internal_error"
                    return


def test_no_event_hangs_or_breaks_a_session(
    runner: asyncio.Runner, pytestconfig: pytest.Config, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(DoubleCascade(word_delay=0.001, first_delay=0.001, ears_delay=0.001), FaceSettings())
    runner.run(server.start())
    try:
        tried = fuzz(pytestconfig, lambda messages: runner.run(_session(server, messages)), MESSAGES, 60)
    finally:
        runner.run(server.stop())  # waits for all sessions to be gone
    print(f"{tried} sessions")
    assert tried >= 60
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
