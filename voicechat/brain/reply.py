"""What the chunks of a chat completion say: text, calls of tools, counts, the end. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from voicechat.contract.messages import Call

THINK, THOUGHT = "<think>", "</think>"
MAX_CALLS = 128


class MalformedReply(ValueError):
    """A chunk is not what a chat completion consists of."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens as the endpoint counts them."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@dataclass(slots=True)
class _Draft:
    """A call whose parts are still coming."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class Reply:
    """Takes the JSON objects of one reply in order: those of a stream, or the only one of a whole reply.

    Thoughts that some models write in front of their answer (``<think>``) are left out: nobody should hear them.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        """``finish_reason``, once it is there."""
        self.counts: Counts | None = None
        self.pieces = 0
        """Chunks of text so far, about as many as tokens: for endpoints that do not count."""
        self._drafts: dict[int, _Draft] = {}
        self._thoughts = _Thoughts()

    def take(self, chunk: object) -> str:
        """Text to be spoken that the next object brings, perhaps none. Raises :class:`MalformedReply`."""
        if not isinstance(chunk, dict):
            raise MalformedReply("a chunk is not a JSON object")
        if isinstance(usage := chunk.get("usage"), dict):
            self.counts = _counts(usage)
        choices = chunk.get("choices")
        if choices is None and "usage" in chunk:
            return ""
        if not isinstance(choices, list):
            raise MalformedReply("a chunk has no choices")
        if not choices:
            return ""
        choice = choices[0]
        delta = choice.get("delta") or choice.get("message") or {} if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            raise MalformedReply("a choice is not a JSON object")
        if isinstance(reason := choice.get("finish_reason"), str):
            self.reason = reason
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise MalformedReply("the tool calls are not an array")
        for call in calls:
            self._take_call(call)
        content = delta.get("content")
        if content is None:
            return ""
        if not isinstance(content, str):
            raise MalformedReply("the content is not a string")
        self.pieces += bool(content)
        return self._thoughts.push(content)

    @property
    def begun(self) -> bool:
        """True once there was text, a thought or a part of a call."""
        return bool(self.pieces or self._drafts)

    def rest(self) -> str:
        """At the end: text that was held back."""
        return self._thoughts.finish()

    def calls(self) -> list[Call]:
        """At the end: the calls of tools, in order. Raises :class:`MalformedReply` for one without a name."""
        calls = []
        for index, draft in sorted(self._drafts.items()):
            if not draft.name:
                raise MalformedReply("a tool call has no name")
            calls.append(Call(draft.id or f"call_{index}", draft.name, draft.arguments or "{}"))
        return calls

    def _take_call(self, part: object) -> None:
        """Parts of one call share its ``index``; endpoints that send calls whole may leave it out."""
        function = part.get("function") or {} if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(function, dict):
            raise MalformedReply("a tool call is not a JSON object")
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise MalformedReply("the name or the arguments of a tool call are not strings")
        number, index = str(part.get("id") or ""), part.get("index")
        if not isinstance(index, int):
            known = {draft.id: place for place, draft in self._drafts.items() if draft.id}
            last = max(self._drafts, default=-1)
            index = known.get(number, last + 1 if number or name or last < 0 else last)
        if index not in self._drafts and len(self._drafts) >= MAX_CALLS:
            raise MalformedReply(f"there are more than {MAX_CALLS} tool calls")
        draft = self._drafts.setdefault(index, _Draft())
        draft.id = draft.id or number
        draft.name = draft.name or name
        draft.arguments += arguments


class _Thoughts:
    """Lets a reply's text through, but for thoughts at its beginning."""

    def __init__(self) -> None:
        self._held = ""
        self._state = "before"

    def push(self, text: str) -> str:
        """The part of the next text that is to be shown."""
        if self._state == "after":
            return text
        self._held += text
        if self._state == "before":
            begin = self._held.lstrip()
            if len(begin) < len(THINK) and THINK.startswith(begin):
                return ""
            self._state = "inside" if begin.startswith(THINK) else "after"
        if self._state == "inside":
            _, found, left = self._held.partition(THOUGHT)
            if not found:
                self._held = self._held[1 - len(THOUGHT) :]
                return ""
            self._held, self._state = left, "blank"
        if self._state == "blank":
            self._held = self._held.lstrip()
            if not self._held:
                return ""
            self._state = "after"
        return self.finish()

    def finish(self) -> str:
        """What was held back; thoughts that never ended are not shown."""
        held, self._held = self._held, ""
        return "" if self._state == "inside" else held


def _counts(usage: dict[str, Any]) -> Counts:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Counts(_count(usage.get("prompt_tokens")), _count(cached), _count(usage.get("completion_tokens")))


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
