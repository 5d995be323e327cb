"""PyPI ``livekit-plugins-openai``: its ``RealtimeModel``, and a caller that does what livekit's own session does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from livekit import rtc
from livekit.plugins.openai import realtime

from tests.clients.talk import INSTRUCTIONS, Answer, Microphone, Sound, Talk
from voicechat.contract.sound import PCM_RATE


async def converse(base: str, questions: Sequence[Sound], folder: Path) -> Talk:
    """Hold the conversation with the server at ``base``."""
    talk = Talk()
    async with aiohttp.ClientSession() as http:
        model = realtime.RealtimeModel(api_key="none", base_url=f"{base}/v1", http_session=http)
        session = model.session()
        messages: list[str] = []

        def on_generation(generation: Any) -> None:
            talk.start(_read(generation, talk.answer(), messages))

        def on_speech(_: Any) -> None:
            if len(talk.answers) == 2:
                session.truncate(message_id=messages[-1], modalities=["audio"], audio_end_ms=talk.played_ms())

        session.on("generation_created", on_generation)
        session.on("input_speech_started", on_speech)
        session.on(
            "input_audio_transcription_completed", lambda e: talk.asked.append(e.transcript) if e.is_final else None
        )
        session.on("openai_server_event_received", talk.on_server_event)
        session.on("error", talk.errors.append)
        await session.update_instructions(INSTRUCTIONS)

        async def send(data: bytes) -> None:
            session.push_audio(rtc.AudioFrame(data, PCM_RATE, 1, len(data) // 2))

        async def retrieve(item_id: str) -> None:
            session.send_event({"type": "conversation.item.retrieve", "item_id": item_id})

        async with Microphone(send) as microphone:
            await talk.hold(microphone.say, questions, retrieve)
        await session.aclose()
        await model.aclose()
    return talk


async def _read(generation: Any, answer: Answer, messages: list[str]) -> None:
    """The one message of a generation: its text and its sound are streams of their own."""

    async def read_text(stream: Any) -> None:
        async for piece in stream:
            answer.text += piece

    async for message in generation.message_stream:
        messages.append(message.message_id)
        text = asyncio.create_task(read_text(message.text_stream))
        async for frame in message.audio_stream:
            answer.add(bytes(frame.data))
        await text
    answer.done = True
