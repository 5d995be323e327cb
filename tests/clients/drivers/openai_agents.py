"""PyPI ``openai-agents``: its realtime runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.realtime.model_inputs import RealtimeModelRawClientMessage, RealtimeModelSendRawMessage

from tests.clients.talk import INSTRUCTIONS, Microphone, Sound, Talk


async def converse(base: str, questions: Sequence[Sound], folder: Path) -> Talk:
    """Hold the conversation with the server at ``base``."""
    talk = Talk()
    runner = RealtimeRunner(RealtimeAgent(name="Anna", instructions=INSTRUCTIONS))
    url = base.replace("http", "ws", 1) + "/v1/realtime?model=gpt-realtime"
    session = await runner.run(model_config={"api_key": "none", "url": url})
    async with session:

        async def retrieve(item_id: str) -> None:
            message = RealtimeModelRawClientMessage(type="conversation.item.retrieve", other_data={"item_id": item_id})
            await session.model.send_event(RealtimeModelSendRawMessage(message=message))

        talk.start(_read(session, talk))
        async with Microphone(session.send_audio) as microphone:
            await talk.hold(microphone.say, questions, retrieve)
        talk.history = transcripts(session)
    return talk


def transcripts(session: Any) -> list[tuple[str, str]]:
    """Roles and transcripts of the client's own history."""
    return [
        (item.role, " ".join(getattr(part, "transcript", None) or "" for part in item.content))
        for item in session._history
        if item.type == "message"
    ]


async def _read(session: Any, talk: Talk) -> None:
    async for event in session:
        match event.type:
            case "agent_start":
                talk.answer()
            case "audio":
                talk.sound(event.audio.data)
            case "agent_end":
                talk.done()
            case "error":
                talk.errors.append(event.error)
            case "raw_model_event":
                _on_model_event(event.data, talk)


def _on_model_event(event: Any, talk: Talk) -> None:
    match event.type:
        case "transcript_delta":
            talk.text(event.delta)
        case "input_audio_transcription_completed":
            talk.asked.append(event.transcript)
        case "raw_server_event":
            talk.on_server_event(event.data)
