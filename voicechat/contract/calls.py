"""Calls of tools in a reply's text: taken out as the text comes, whichever way it is cut. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from voicechat.contract.tools import CLOSE, OPEN


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the reply; ``arguments`` is a JSON object as text."""

    name: str
    arguments: str


class CallParser:
    """Takes the reply piece by piece; gives back text to be shown, and calls. Without tools all of it is text."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._begun = False
        self._fresh = True  # at the beginning, or after a call: blanks are nothing to show

    @property
    def holding(self) -> bool:
        """True while what came last may be part of a call."""
        return bool(self._held)

    def push(self, text: str) -> list[str | ToolCall]:
        """What has become certain with ``text``."""
        if not self._names:
            return [text] if text else []
        self._held += text
        found: list[str | ToolCall] = []
        while self._held:
            if not self._begun and self._bare():
                fenced = self._held.lstrip().startswith("`") and not self._held.rstrip().endswith("}\n```")
                if not fenced and (call := self._parse(self._held)) is not None:
                    self._held, self._begun = "", True
                    found.append(call)
                return found
            start = self._held.find(OPEN)
            if start < 0:
                keep = _overlap(self._held, OPEN)
                self._show(self._held[: len(self._held) - keep], found)
                self._held = self._held[len(self._held) - keep :]
                return found
            if start:
                self._show(self._held[:start], found)
                self._held = self._held[start:]
            end = self._held.find(CLOSE)
            if end < 0:
                return found
            block, self._held = self._held[: end + len(CLOSE)], self._held[end + len(CLOSE) :]
            call = self._parse(block[len(OPEN) : -len(CLOSE)])
            if call is None:
                self._show(block, found)
            else:
                self._begun = self._fresh = True
                found.append(call)
        return found

    def finish(self) -> list[str | ToolCall]:
        """The rest, at the end of the reply."""
        held, self._held = self._held, ""
        call = self._parse(held.removeprefix(OPEN))
        if call is not None:
            return [call]
        rest: list[str | ToolCall] = []
        self._show(held, rest)
        return rest

    def _bare(self) -> bool:
        """True while the reply may be nothing but the JSON object, which some models write without the marks."""
        begin = self._held.lstrip()
        return not begin or begin[0] == "{" or "```json".startswith(begin[:7])

    def _show(self, text: str, found: list[str | ToolCall]) -> None:
        if self._fresh:
            text = text.lstrip()
        if text:
            self._begun, self._fresh = True, False
            found.append(text)

    def _parse(self, text: str) -> ToolCall | None:
        text = text.strip().removeprefix("```json").removesuffix("```").strip()
        try:
            value = json.loads(text)
        except ValueError:
            return None
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            return ToolCall(value["name"], arguments)
        return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``mark``."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
