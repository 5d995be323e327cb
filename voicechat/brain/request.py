"""From a request of the cascade to the body of a chat completion. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from voicechat.contract.messages import Call, Generate, Turn
from voicechat.contract.tools import function_object, output_text


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an endpoint was found to understand: endpoints refuse a body for a field that they do not know."""

    stream_options: bool = True
    max_tokens: str = "max_tokens"

    def milder(self, refusal: str) -> Dialect | None:
        """The dialect to try next after a body was refused with these words; None if they name nothing of ours."""
        if self.stream_options and "stream_options" in refusal:
            return replace(self, stream_options=False)
        if self.max_tokens == "max_tokens" and "max_completion_tokens" in refusal:
            return replace(self, max_tokens="max_completion_tokens")
        return None


def completion_body(
    message: Generate, model: str, *, system_prompt: str, max_tokens: int | None, dialect: Dialect
) -> dict[str, Any]:
    """The body that asks for the reply as a stream; ``max_tokens`` is for requests that do not say."""
    body: dict[str, Any] = {
        "model": model,
        "messages": completion_messages(message.turns, system_prompt),
        "stream": True,
    }
    if dialect.stream_options:
        body["stream_options"] = {"include_usage": True}
    limit = max_tokens if message.max_tokens is None else message.max_tokens
    given = {
        dialect.max_tokens: limit,
        "temperature": message.temperature,
        "top_p": message.top_p,
        "seed": message.seed,
        "stop": list(message.stop) or None,
    }
    body.update((name, value) for name, value in given.items() if value is not None)
    if message.tools and message.tool_choice != "none":
        body["tools"] = [{"type": "function", "function": function_object(tool)} for tool in message.tools]
        if message.must_call is not None:
            body["tool_choice"] = {"type": "function", "function": {"name": message.must_call}}
        else:
            body["tool_choice"] = message.tool_choice
    return body


def completion_messages(turns: tuple[Turn, ...], system_prompt: str) -> list[dict[str, Any]]:
    """The conversation, with ``system_prompt`` in front if the caller gave no system turn.

    Endpoints want each call to be followed by its result, and nothing else to come between: results are moved there. A
    call without a result is left out; a result whose call is not there any more is told as the user's words.
    """
    results = {turn.result_of: turn.text for turn in turns if turn.result_of is not None}
    called = {call.id for turn in turns for call in turn.calls}
    messages: list[dict[str, Any]] = []
    if not any(turn.role == "system" for turn in turns):
        messages.append({"role": "system", "content": system_prompt})
    for turn in turns:
        if turn.result_of is not None:
            if turn.result_of not in called:
                messages.append({"role": "user", "content": output_text(turn.text)})
            continue
        answered = [call for call in turn.calls if call.id in results]
        if answered:
            calls = [_call_object(call) for call in answered]
            messages.append({"role": "assistant", "content": turn.text or None, "tool_calls": calls})
            messages.extend({"role": "tool", "tool_call_id": call.id, "content": results[call.id]} for call in answered)
        elif turn.text or not turn.calls:
            messages.append({"role": turn.role, "content": turn.text})
    return messages


def _call_object(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
