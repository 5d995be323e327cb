"""Speech through the text-to-speech clients of other people, as they come: their own models, voices and formats."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests import needed
from tests.cascade_double import DoubleCascade

TEXT = "one two three four five six"
SECONDS = 6 * 0.3


async def test_openai_agents(serve: Any) -> None:
    """Always sends instructions."""
    voice = needed.module("agents.voice")
    from agents.voice.models.openai_tts import OpenAITTSModel
    from openai import AsyncOpenAI

    cascade = DoubleCascade(word_delay=0.01)
    server = await serve(cascade)
    async with AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as client:
        model = OpenAITTSModel("gpt-4o-mini-tts", client)
        sound = b"".join([chunk async for chunk in model.run(TEXT, voice.TTSModelSettings(speed=1.5))])
    assert len(sound) / 2 / 24_000 == pytest.approx(SECONDS / 1.5, abs=0.001)
    assert cascade.speeches[0].voice == "ben"  # ash


@pytest.mark.parametrize("options", [{}, {"model": "tts-1"}, {"response_format": "opus"}, {"response_format": "pcm"}])
async def test_livekit(serve: Any, options: dict[str, str]) -> None:
    """Asks for events, and for the bytes of an mp3 from the older models."""
    livekit = needed.module("livekit.plugins.openai")
    cascade = DoubleCascade(word_delay=0.01)
    server = await serve(cascade)
    tts = livekit.TTS(base_url=f"{server.base}/v1", api_key="none", **options)
    try:
        async with asyncio.timeout(30):
            frame = await tts.synthesize(TEXT).collect()
    finally:
        await tts.aclose()
    assert frame.sample_rate == 24_000
    assert frame.duration == pytest.approx(SECONDS, abs=0.15)
    assert cascade.speeches[0].text == TEXT


async def test_pipecat(serve: Any) -> None:
    needed.module("pipecat")
    from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame
    from pipecat.services.openai.tts import OpenAITTSService

    cascade = DoubleCascade(word_delay=0.01)
    server = await serve(cascade)
    service = OpenAITTSService(api_key="none", base_url=f"{server.base}/v1", sample_rate=24_000)
    service._sample_rate = 24_000  # what its pipeline would tell it
    frames = [frame async for frame in service.run_tts(TEXT, "context")]
    assert not [frame for frame in frames if isinstance(frame, ErrorFrame)]
    sound = b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))
    assert len(sound) / 2 / 24_000 == pytest.approx(SECONDS, abs=0.001)
