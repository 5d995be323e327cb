"""PyPI ``openai``: ``realtime.connect``, with a key from ``realtime.client_secrets.create``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.clients.talk import INSTRUCTIONS, Microphone, Sound, Talk

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


async def converse(base: str, questions: Sequence[Sound], folder: Path) -> Talk:
    """Hold the conversation with the server at ``base``."""
    talk = Talk()
    async with AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        secret = await client.realtime.client_secrets.create(session={"type": "realtime", "instructions": INSTRUCTIONS})
    async with (
        AsyncOpenAI(base_url=f"{base}/v1", api_key=secret.value, max_retries=0) as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):

        async def send(data: bytes) -> None:
            await connection.input_audio_buffer.append(audio=base64.b64encode(data).decode())

        async def retrieve(item_id: str) -> None:
            await connection.conversation.item.retrieve(item_id=item_id)

        talk.start(_read(connection, talk))
        async with Microphone(send) as microphone:
            await talk.hold(microphone.say, questions, retrieve)
    return talk


async def _read(connection: Any, talk: Talk) -> None:
    item_id = ""
    async for event in connection:
        SERVER_EVENT.validate_python(event.to_dict())
        talk.on_server_event(event.to_dict())
        match event.type:
            case "session.created":
                assert event.session.instructions == INSTRUCTIONS
            case "response.created":
                talk.answer()
            case "response.output_audio.delta":
                item_id = event.item_id
                talk.sound(base64.b64decode(event.delta))
            case "response.output_audio_transcript.delta":
                talk.text(event.delta)
            case "response.done":
                talk.done()
            case "conversation.item.input_audio_transcription.completed":
                talk.asked.append(event.transcript)
            case "input_audio_buffer.speech_started" if len(talk.answers) == 2:
                played = talk.played_ms()
                await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=played)
            case "error":
                talk.errors.append(event.error)
