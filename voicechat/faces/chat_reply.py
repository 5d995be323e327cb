"""The replies of chat completions: the whole object, and the chunks of a stream. Pure."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from voicechat.contract.calls import ToolCall
from voicechat.contract.cascade import ModelInfo
from voicechat.contract.events import Finished, FinishReason, Usage
from voicechat.contract.sound import Pcm
from voicechat.media.wav import pcm_bytes

AUDIO_TOKENS_PER_SECOND = 25
"""A second of sound heard counts as this many tokens, just as a second of sound made is this many speech tokens."""

DONE = b"data: [DONE]\n\n"


def fingerprint(model: ModelInfo) -> str:
    """``system_fingerprint``: changes when the served model does."""
    text = f"{model.name}/{model.created}/{','.join(model.voices)}/{model.context_tokens}"
    return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """Counts in OpenAI's shape.

    Text tokens are the Thinker's; audio tokens are steps of 40 ms, of the sound heard and of the sound made. Totals
    are the sums of both. What the ears wrote down of the sound is in the Thinker's prompt, so it counts as text too.
    """
    heard = round(usage.audio_in_seconds * AUDIO_TOKENS_PER_SECOND)
    prompt = usage.prompt_tokens + heard
    completion = usage.completion_tokens + usage.speech_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "audio_tokens": heard,
            "cached_tokens": usage.cached_tokens,
            "text_tokens": usage.prompt_tokens,
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0,
            "audio_tokens": usage.speech_tokens,
            "reasoning_tokens": 0,
            "rejected_prediction_tokens": 0,
            "text_tokens": usage.completion_tokens,
        },
    }


def details_object(finished: Finished, heard: tuple[str, ...]) -> dict[str, Any]:
    """The extension ``details``: what the ears understood, and the times of the stages in seconds."""
    return {
        "heard": list(heard),
        "times": dataclasses.asdict(finished.times),
        "usage": dataclasses.asdict(finished.usage),
    }


class ReplyShape:
    """Builds the JSON of one reply, whole or in chunks, all with the same id, time and model."""

    def __init__(self, model: ModelInfo, *, include_usage: bool = False) -> None:
        self._include_usage = include_usage
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": model.name,
            "service_tier": "default",
            "system_fingerprint": fingerprint(model),
        }

    def completion(
        self, message: dict[str, Any], finished: Finished, calls: Sequence[ToolCall] = (), **extra: Any
    ) -> dict[str, Any]:
        """The whole reply. ``extra`` are fields beside the usual ones."""
        if calls:
            message = {**message, "tool_calls": [call_object(call) for call in calls]}
        full = {"role": "assistant", "content": None, "refusal": None, "annotations": [], **message}
        choice = {"index": 0, "message": full, "logprobs": None, "finish_reason": reason(finished, calls)}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage_object(finished.usage),
            **extra,
        }

    def role(self) -> bytes:
        """First chunk."""
        return self._chunk({"role": "assistant", "content": None, "refusal": None})

    def text(self, text: str) -> bytes:
        """Chunk of a reply in text."""
        return self._chunk({"content": text})

    def audio_id(self, audio_id: str) -> bytes:
        """First audio chunk."""
        return self._chunk({"audio": {"id": audio_id}})

    def transcript(self, text: str) -> bytes:
        """Chunk of a spoken reply's text."""
        return self._chunk({"audio": {"transcript": text}})

    def sound(self, pcm: Pcm) -> bytes:
        """Chunk of a spoken reply's sound (int16 ``[n]``), as base64 of little-endian PCM."""
        return self._chunk({"audio": {"data": base64.b64encode(pcm_bytes(pcm)).decode("ascii")}})

    def audio_end(self, expires_at: int) -> bytes:
        """Last audio chunk: only when the reply expires, and no ``finish_reason``, as OpenAI documents it."""
        choice = {"index": 0, "delta": {"audio": {"expires_at": expires_at}}}
        return self._event([choice])

    def tool_call(self, call: ToolCall, index: int) -> bytes:
        """Chunk with a whole call, the reply's ``index``-th."""
        return self._chunk({"tool_calls": [{"index": index, **call_object(call)}]})

    def finish(self, finished: Finished, *, called: bool = False, **extra: Any) -> bytes:
        """The chunk with ``finish_reason``."""
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason(finished, called)}
        return self._event([choice], **extra)

    def usage(self, finished: Finished) -> bytes:
        """The chunk after the last one, for those who asked for the usage."""
        return self._event([], usage=usage_object(finished.usage))

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        return self._event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _event(self, choices: list[dict[str, Any]], **extra: Any) -> bytes:
        usage = {"usage": None} if self._include_usage else {}
        return sse({**self._head, "object": "chat.completion.chunk", "choices": choices, **usage, **extra})


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call with an identifier of its own."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def reason(finished: Finished, called: object) -> str:
    """``finish_reason``; a reply that called tools and was not cut off ends with that."""
    return "tool_calls" if called and finished.reason is FinishReason.STOP else finished.reason.value


def sse(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
