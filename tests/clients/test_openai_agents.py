"""PyPI ``openai-agents``: its realtime runner holds a conversation of three turns, one of them interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.speech import voice
from tests.ws_server import spoken
from voicechat.media.resample import to_pcm

realtime = pytest.importorskip("agents.realtime")


def sound(samples: np.ndarray) -> bytes:
    return to_pcm(samples.astype(np.float32)).astype("<i2").tobytes()


async def next_event(session: Any, kind: str) -> Any:
    async with asyncio.timeout(20):
        async for event in session:
            assert event.type != "error", event
            if event.type == kind:
                return event
    raise AssertionError(f"the session ended without {kind}")


def transcripts(session: Any) -> list[tuple[str, str]]:
    """Roles and transcripts of the client's own history."""
    return [
        (item.role, " ".join(getattr(part, "transcript", None) or "" for part in item.content))
        for item in session._history
        if item.type == "message"
    ]


async def test_a_tool_is_called_and_its_result_spoken_of(serve):
    from agents import function_tool

    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    cascade = DoubleCascade(answer=call, word_delay=0.01)
    asked: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        cascade.answer = None
        return "sunny"

    server = await serve(cascade)
    agent = realtime.RealtimeAgent(name="Anna", instructions="Be brief.", tools=[get_weather])
    url = server.base.replace("http", "ws") + "/v1/realtime?model=gpt-realtime"
    session = await realtime.RealtimeRunner(agent).run(model_config={"api_key": "none", "url": url})
    async with session:
        await session.send_message("What is the weather in Paris?")
        await next_event(session, "tool_end")
        await next_event(session, "audio")
        await next_event(session, "agent_end")
        assert "sunny" in transcripts(session)[-1][1]
    assert asked == ["Paris"]
    assert "get_weather" in cascade.requests[0].messages[0].parts[0].text
    assert cascade.responses[0].cancelled.is_set(), "the call is not spoken"


async def test_three_turns_with_an_interruption(serve):
    cascade = DoubleCascade(transcripts=["one", "two", "three"], word_delay=0.01)
    server = await serve(cascade)
    agent = realtime.RealtimeAgent(name="Anna", instructions="Be brief.")
    runner = realtime.RealtimeRunner(agent)
    url = server.base.replace("http", "ws") + "/v1/realtime?model=gpt-realtime"
    session = await runner.run(model_config={"api_key": "none", "url": url})
    async with session:
        await session.send_audio(sound(spoken()))
        heard = b""
        async with asyncio.timeout(20):
            async for event in session:
                assert event.type != "error", event
                if event.type == "audio":
                    heard += event.audio.data
                elif event.type == "agent_end":
                    break
        assert len(heard) == round(3 * 0.3 * 24_000) * 2
        cascade.answer, cascade.word_delay = "word " * 100, 0.1
        await session.send_audio(sound(spoken()))
        await next_event(session, "audio")
        await session.send_audio(sound(voice(0.8, 24_000)))
        await next_event(session, "audio_interrupted")
        cascade.answer = None
        await session.send_audio(bytes(2 * 40_000))
        await next_event(session, "agent_end")
        await next_event(session, "agent_end")
        said = transcripts(session)
    assert [text for role, text in said if role == "user"] == ["one", "two", "three"]
    assert said[1] == ("assistant", "You said: one.")
    assert said[-1] == ("assistant", "You said: three.")
    assert cascade.responses[1].cancelled.is_set()
