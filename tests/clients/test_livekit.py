"""PyPI ``livekit-plugins-openai``: its ``RealtimeModel`` holds three turns, one of them interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.speech import voice
from tests.ws_server import spoken
from voicechat.media.resample import to_pcm

livekit = pytest.importorskip("livekit.plugins.openai")

from livekit import rtc  # noqa: E402


def push(session: Any, samples: np.ndarray) -> None:
    data = to_pcm(samples.astype(np.float32)).astype("<i2").tobytes()
    session.push_audio(rtc.AudioFrame(data, 24_000, 1, len(data) // 2))


async def answer(generation: Any) -> tuple[str, int]:
    """Text and samples of the one message of a generation."""
    text, samples = "", 0
    async with asyncio.timeout(20):
        async for message in generation.message_stream:
            async for piece in message.text_stream:
                text += piece
            async for frame in message.audio_stream:
                samples += frame.samples_per_channel
    return text, samples


async def test_three_turns_with_an_interruption(serve):
    cascade = DoubleCascade(transcripts=["one", "two", "three"], word_delay=0.01)
    server = await serve(cascade)
    async with aiohttp.ClientSession() as http:
        model = livekit.realtime.RealtimeModel(api_key="none", base_url=f"{server.base}/v1", http_session=http)
        session = model.session()
        generations: asyncio.Queue[Any] = asyncio.Queue()
        heard: list[str] = []
        errors: list[Any] = []
        session.on("generation_created", generations.put_nowait)
        session.on("input_audio_transcription_completed", lambda e: heard.append(e.transcript) if e.is_final else None)
        session.on("error", errors.append)
        await session.update_instructions("Be brief.")
        push(session, spoken())
        assert await answer(await asyncio.wait_for(generations.get(), 20)) == ("You said: one.", round(0.9 * 24_000))

        cascade.answer, cascade.word_delay = "word " * 100, 0.1
        push(session, spoken())
        generation = await asyncio.wait_for(generations.get(), 20)
        message = await anext(aiter(generation.message_stream))
        await anext(aiter(message.audio_stream))
        push(session, voice(0.8, 24_000))
        async with asyncio.timeout(20):
            async for _ in message.audio_stream:
                pass
        session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=300)
        assert cascade.responses[1].cancelled.is_set()

        cascade.answer = None
        push(session, np.zeros(40_000))
        assert (await answer(await asyncio.wait_for(generations.get(), 20)))[0] == "You said: three."
        assert (await answer(await asyncio.wait_for(session.generate_reply(instructions="Go on."), 20)))[1] > 0
        assert heard == ["one", "two", "three"]
        assert not errors
        told = [message.parts[0].text for message in cascade.requests[2].messages]
        assert told[-2] == "word", "truncated to what the client says was heard"
        await session.aclose()
        await model.aclose()
