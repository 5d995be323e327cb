"""PyPI ``openai`` over WebRTC: ``realtime.calls.create`` and ``hangup``; aiortc as it comes carries the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import numpy as np
from aiortc import RTCSessionDescription
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests import rtc_client
from tests.clients.talk import INSTRUCTIONS, Sound, Talk, to_bytes
from voicechat.contract.sound import PCM_RATE
from voicechat.media.resample import resample

SERVER_EVENT: TypeAdapter[object] = TypeAdapter(RealtimeServerEvent)
LATE = 0.3
"""Seconds that sound may lag behind the event that speaks of it."""


async def converse(base: str, questions: Sequence[Sound], folder: Path) -> Talk:
    """Hold the conversation with the server at ``base``."""
    talk = Talk()
    async with (
        aiohttp.ClientSession() as http,
        AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client,
    ):
        caller = rtc_client.Client(http, base)
        await caller.connection.setLocalDescription(await caller.connection.createOffer())
        session = {"type": "realtime", "instructions": INSTRUCTIONS}
        call = await client.realtime.calls.create(sdp=caller.connection.localDescription.sdp, session=session)
        await caller.connection.setRemoteDescription(RTCSessionDescription(sdp=call.text, type="answer"))
        talk.start(_read(caller, talk))

        async def retrieve(item_id: str) -> None:
            caller.tell("conversation.item.retrieve", item_id=item_id)

        def say(sound: Sound) -> None:
            caller.microphone.say(resample(sound, PCM_RATE, rtc_client.RATE))

        try:
            await talk.hold(say, questions, retrieve)
            await client.realtime.calls.hangup(call.response.headers["Location"].rsplit("/", 1)[1])
            await asyncio.wait_for(caller.closed.wait(), 10)
        finally:
            await caller.close()
    return talk


async def _read(caller: rtc_client.Client, talk: Talk) -> None:
    """The events as they come; an answer's sound is what the track carries between their start and their end."""
    seen, started = 0, 0.0
    while True:
        await asyncio.sleep(0.01)
        for event, arrived in zip(caller.events[seen:], caller.arrivals[seen:], strict=True):
            seen += 1
            SERVER_EVENT.validate_python(event)
            talk.on_server_event(event)
            match event["type"]:
                case "session.created":
                    assert event["session"]["instructions"] == INSTRUCTIONS
                case "response.created":
                    talk.answer()
                case "response.output_audio_transcript.delta":
                    talk.text(event["delta"])
                case "output_audio_buffer.started":
                    started = arrived
                    talk.answers[-1].begin()
                case "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
                    await asyncio.sleep(LATE)
                    frames = [frame for at, frame in caller.heard if started <= at <= arrived + LATE]
                    talk.sound(to_bytes(resample(np.concatenate(frames), rtc_client.RATE, PCM_RATE)))
                    talk.done()
                case "conversation.item.input_audio_transcription.completed":
                    talk.asked.append(event["transcript"])
                case "error":
                    talk.errors.append(event["error"])
