"""npm ``@openai/agents-realtime`` in Node, over WebSocket; see :file:`agents.cjs`."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import needed
from tests.clients.talk import INSTRUCTIONS, Microphone, Sound, Talk

_LONGEST_LINE = 16 << 20


async def converse(base: str, questions: Sequence[Sound], folder: Path) -> Talk:
    """Hold the conversation with the server at ``base``."""
    talk = Talk()
    needed.node_module("@openai/agents-realtime")
    url = base.replace("http", "ws", 1) + "/v1/realtime?model=gpt-realtime"
    script = Path(__file__).with_name("agents.cjs")
    process = await asyncio.create_subprocess_exec(
        needed.program("node"), str(script), str(needed.NODE_FOLDER), url, INSTRUCTIONS,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LONGEST_LINE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    pipe = process.stdin

    async def tell(**fields: Any) -> None:
        pipe.write(json.dumps(fields).encode() + b"\n")
        await pipe.drain()

    async def send(data: bytes) -> None:
        await tell(sound=base64.b64encode(data).decode())

    async def retrieve(item_id: str) -> None:
        await tell(retrieve=item_id)

    try:
        talk.start(_read(process.stdout, talk))
        async with Microphone(send) as microphone:
            await talk.hold(microphone.say, questions, retrieve)
        await tell(end=True)
        async with asyncio.timeout(10):
            async for line in process.stdout:
                _on_line(json.loads(line), talk)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return talk


async def _read(stream: asyncio.StreamReader, talk: Talk) -> None:
    async for line in stream:
        _on_line(json.loads(line), talk)
    raise AssertionError("node ended too early")


def _on_line(line: dict[str, Any], talk: Talk) -> None:
    match line["event"]:
        case "agent_start":
            talk.answer()
        case "audio":
            talk.sound(base64.b64decode(line["data"]))
        case "agent_end":
            talk.done()
        case "transport_event":
            event = line["server"]
            talk.on_server_event(event)
            if event["type"] == "response.output_audio_transcript.delta":
                talk.text(event["delta"])
            elif event["type"] == "conversation.item.input_audio_transcription.completed":
                talk.asked.append(event["transcript"])
        case "history":
            talk.history = [(role, text) for role, text in line["items"]]
        case "error":
            talk.errors.append(line["error"])
