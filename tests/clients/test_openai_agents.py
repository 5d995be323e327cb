"""PyPI ``openai-agents``: its realtime runner calls a tool."""

from __future__ import annotations

import asyncio
from typing import Any

from tests import needed
from tests.cascade_double import DoubleCascade


async def next_event(session: Any, kind: str) -> Any:
    async with asyncio.timeout(20):
        async for event in session:
            assert event.type != "error", event
            if event.type == kind:
                return event
    raise AssertionError(f"the session ended without {kind}")


async def test_a_tool_is_called_and_its_result_spoken_of(serve):
    realtime = needed.module("agents.realtime")
    from agents import function_tool

    from tests.clients.drivers.openai_agents import transcripts

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
    assert [tool.name for tool in cascade.requests[0].tools] == ["get_weather"]
    assert cascade.responses[0].cancelled.is_set(), "the call is not spoken"
